"""Writes the scripted model: a few hundred KB that a real vLLM loads and serves, with answers that are known.

The output projections of attention and MLP are zero, so the last hidden state is the embedding of the last token, and
the output head holds a table last token -> next token. The real engine does all its work (attention, KV cache,
all-reduce between the ranks) and says a fixed text:

- a chat: reasoning "The user asks; answer briefly.", then "Hello from the tiny model."
- with tools: reasoning "Need a tool now.", then the call get_weather({"city": "Paris"})
- enable_thinking false: the same answer without reasoning
- chat_template_kwargs {"loop": true}, or a raw prompt that ends in "~": " tick tock tack tuck" without end

What it cannot show: wrong attention or a wrong KV cache, because their results are multiplied with zero.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path

HIDDEN, HEADS, KV_HEADS, HEAD_SIZE, INNER, LAYERS, VOCABULARY = 64, 4, 2, 32, 128, 2, 512
LONGEST = 131072
"""Long enough for streams that run through a test of many minutes."""

SPECIAL = ["<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>",
           "<|say_tool|>", "<|say_loop|>", "<|say_plain|>"]  # fmt: skip
MARKS = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>",
         "</arg_value>", "/nothink"]  # fmt: skip
REASONING = ["The user", " asks;", " answer", " briefly."]
ANSWER = ["Hello", " from", " the", " tiny", " model", "."]
TOOL_REASONING = ["Need", " a tool", " now."]
TOOL = ["get_weather", "city", "Paris"]
LOOP = [" tick", " tock", " tack", " tuck"]

TEMPLATE = """[gMASK]<sop>{%- if tools -%}<|system|>
# Tools
{% for t in tools %}{{ t | tojson }}
{% endfor %}{%- endif -%}
{%- for m in messages -%}
{%- if m.role == 'tool' -%}<|observation|>
{{ m.content }}
{%- else -%}<|{{ m.role }}|>
{%- if m.content is string -%}{{ m.content }}
{%- elif m.content -%}
{%- for p in m.content -%}{%- if p.type == 'text' -%}{{ p.text }}{%- endif -%}{%- endfor -%}
{%- endif -%}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|assistant|>
{%- if loop is defined and loop -%}</think><|say_loop|>
{%- elif tools and messages[-1].role != 'tool' -%}<think>Need a tool now.</think><|say_tool|>
{%- elif enable_thinking is defined and not enable_thinking -%}</think><|say_plain|>
{%- endif -%}
{%- endif -%}"""

Matrix = list[list[float]]


def byte_letters() -> list[str]:
    """The letters that stand for the 256 bytes in a byte-level vocabulary: printable ones for themselves."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [code for code in range(256) if code not in plain]
    return sorted([chr(code) for code in plain] + [chr(256 + place) for place in range(len(others))])


def vocabulary() -> dict[str, int]:
    """Each token's number: bytes, special tokens, marks, and the pieces of the script as tokens of their own."""
    numbers: dict[str, int] = {}
    for token in [*byte_letters(), *SPECIAL, *MARKS, *REASONING, *ANSWER, *TOOL_REASONING, *TOOL, *LOOP]:
        numbers.setdefault(token, len(numbers))
    return numbers


def tokenizer(numbers: dict[str, int]) -> dict[str, object]:
    """A byte-level tokenizer without merges, so that any text can be read, plus the tokens of the script."""
    letters = byte_letters()
    added = [{"id": number, "content": token, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": token in SPECIAL}
             for token, number in numbers.items() if token not in letters or token in ANSWER]  # fmt: skip
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {letter: numbers[letter] for letter in letters}, "merges": []},
    }  # fmt: skip


def script(numbers: dict[str, int]) -> dict[int, int]:
    """Which token follows which; after any other token the model says something arbitrary."""
    following: dict[int, int] = {}
    for chain in (
        ["<|assistant|>", "<think>", *REASONING, "</think>", *ANSWER, "<|user|>"],
        ["<|say_plain|>", ANSWER[0]],
        ["<|say_tool|>", "<tool_call>", TOOL[0], "<arg_key>", TOOL[1], "</arg_key>", "<arg_value>", TOOL[2],
         "</arg_value>", "</tool_call>", "<|observation|>"],
        ["<|say_loop|>", *LOOP, LOOP[0]],
        ["~", LOOP[0]],
    ):  # fmt: skip
        following.update((numbers[token], numbers[after]) for token, after in pairwise(chain))
    return following


def tensors(numbers: dict[str, int]) -> Iterator[tuple[str, Matrix]]:
    """The weights by name, in the layout of a Llama checkpoint."""
    draw = random.Random(0)

    def noise(rows: int, columns: int) -> Matrix:
        return [[draw.gauss(0, 0.05) for _ in range(columns)] for _ in range(rows)]

    def zeros(rows: int, columns: int) -> Matrix:
        return [[0.0] * columns for _ in range(rows)]

    # Each token is a random code of +1 and -1; the head finds the code of the token before.
    codes = [[draw.choice((-1.0, 1.0)) for _ in range(HIDDEN)] for _ in range(VOCABULARY)]
    head = zeros(VOCABULARY, HIDDEN)
    for token, after in script(numbers).items():
        head[after] = [value + code / 2 for value, code in zip(head[after], codes[token], strict=True)]
    yield "lm_head.weight", head
    yield "model.embed_tokens.weight", codes
    yield "model.norm.weight", [[1.0] * HIDDEN]
    for layer in range(LAYERS):
        name = f"model.layers.{layer}."
        yield name + "input_layernorm.weight", [[1.0] * HIDDEN]
        yield name + "post_attention_layernorm.weight", [[1.0] * HIDDEN]
        yield name + "self_attn.q_proj.weight", noise(HEADS * HEAD_SIZE, HIDDEN)
        yield name + "self_attn.k_proj.weight", noise(KV_HEADS * HEAD_SIZE, HIDDEN)
        yield name + "self_attn.v_proj.weight", noise(KV_HEADS * HEAD_SIZE, HIDDEN)
        yield name + "self_attn.o_proj.weight", zeros(HIDDEN, HEADS * HEAD_SIZE)
        yield name + "mlp.gate_proj.weight", noise(INNER, HIDDEN)
        yield name + "mlp.up_proj.weight", noise(INNER, HIDDEN)
        yield name + "mlp.down_proj.weight", zeros(HIDDEN, INNER)


def safetensors(named: Iterable[tuple[str, Matrix]]) -> bytes:
    """The file format: length of the header, header, values. bfloat16 is the upper half of a float."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    body = b""
    for name, rows in named:
        values = [value for row in rows for value in row]
        packed = struct.pack(f"<{len(values)}f", *values)
        data = b"".join(packed[place + 2 : place + 4] for place in range(0, len(packed), 4))
        shape = [len(rows), len(rows[0])] if not name.endswith("norm.weight") else [len(values)]
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + body


def make(place: Path) -> None:
    """Write the model's directory."""
    place.mkdir(parents=True)
    numbers = vocabulary()
    ends = [numbers[token] for token in ("<|user|>", "<|endoftext|>", "<|observation|>")]
    texts = {
        "tokenizer.json": tokenizer(numbers),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 1 << 20, "eos_token": "<|user|>",
            "pad_token": "<|endoftext|>", "clean_up_tokenization_spaces": False,
        },
        "generation_config.json": {"eos_token_id": ends, "temperature": 0.0},
        "config.json": {
            "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": HIDDEN,
            "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_SIZE,
            "intermediate_size": INNER, "num_hidden_layers": LAYERS, "vocab_size": VOCABULARY, "hidden_act": "silu",
            "max_position_embeddings": LONGEST, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
            "torch_dtype": "bfloat16", "tie_word_embeddings": False, "attention_bias": False, "bos_token_id": None,
            "pad_token_id": numbers["<|endoftext|>"], "eos_token_id": ends,
        },
    }  # fmt: skip
    for name, content in texts.items():
        (place / name).write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    (place / "chat_template.jinja").write_text(TEMPLATE)
    (place / "model.safetensors").write_bytes(safetensors(tensors(numbers)))

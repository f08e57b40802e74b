"""The pair's settings: what differs from the stack's defaults. Every knob is in docs/knobs.md.

Plain values only. Leave a knob out for the stack's default; an empty text ("") leaves it to the engine.
For one run: `pyinfra inventory.py deploy.py --data max_num_seqs=8`.
"""

stack = "vllm-exl3"

# A named bundle of settings to start from (docs/presets.md); what is stated here beside it wins.
# preset = "responsive-chat"

# Where the checkpoint and its drafter lie; ~ is the home of the user that inventory.py names, on each node its own.
weights_path = "~/models/glm53-exl3"
drafter_path = "~/models/glm53-dflash2-mxfp8"

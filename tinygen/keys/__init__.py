"""Every key of a configuration, once: its default, its unit or constraint, and whether it may change on resume.

`data`, `model` and `objective` name a row of a table below; the row's keywords and their defaults join that section.
Keys wrapped in `resume(...)` may change when a run is started again in its workdir; any other change is refused. Of the model's and
the objective's keys, those too and the ones wrapped in `stage(...)` may differ from those of the run that `init.ckpt` names.
What is set in one row follows to another row that has the key, unless it is wrapped in `own(...)`.
"""

from typing import Any

from tinygen.keys.data import DATASETS
from tinygen.keys.marks import own, resume, stage
from tinygen.keys.models import MODELS
from tinygen.keys.objectives import OBJECTIVES

__all__ = ["CHOICES", "DATASETS", "MODELS", "OBJECTIVES", "SCHEMA", "TABLES", "own", "resume", "stage"]

SCHEMA: dict[str, Any] = dict(
    seed=0,  # root of every random stream: initialisation, data order, noise, samples
    batch_size=64,  # examples an optimizer step, over all devices; a multiple of optim.accumulate x mesh.data x mesh.fsdp
    precision=resume("auto"),  # auto (by machine) | float32 (exact) | bfloat16 (products' operands) | bfloat16_activations (those too)
    deterministic=resume(False),  # the same bits every time on a GPU too, so that a stopped run goes on as if it had not been; slower there
    attention=resume("auto"),  # auto (by machine, length and objective) | plain | blockwise (less memory) | cudnn (NVIDIA GPUs)
    remat=resume("none"),  # computed again in the backward pass (saves memory; on a CPU with scan): none | products (all but them) | full
    scan=resume(0),  # blocks a turn of a loop over all, which compiles in the time of one turn; divides model.depth; 0 = no loop
    data=dict(
        name="pixel_faces",  # a row of DATASETS
        overfit=0,  # train on the first N examples only; 0 = all. The first thing to try on a new model
    ),
    text=dict(  # captions as a condition, of data that have them
        tokens="",  # "" = none are read | bytes | bpe (a byte-level BPE, trained on the captions at the start)
        embeddings=resume(""),  # in place of tokens: a folder by scripts/prepare_text.py, whose content is what may not change on resume
        length=64,  # tokens that are read of a caption; of longer ones the end is cut off
        vocabulary=1024,  # tokens of bpe at most, padding and the 256 bytes included
    ),
    model=dict(name="microdit"),  # a row of MODELS
    objective=dict(name="flow"),  # a row of OBJECTIVES
    init=dict(  # what the first start begins from; a run that has a checkpoint of its own goes on from that
        ckpt="",  # workdir or checkpoint of another run of this model: its averaged weights, a fresh optimizer, step 0; "" = random weights
        partial=False,  # whatever model it is, take the arrays that fit by name, shape and dtype
    ),
    optim=dict(
        lr=resume(1e-3),  # peak learning rate
        schedule=resume("warmup_cosine"),  # constant | linear (lr -> final_lr over decay_steps, then constant) | warmup_cosine
        warmup=resume(100),  # steps of linear warm-up to lr (warmup_cosine); fewer than decay_steps
        decay_steps=resume(0),  # steps until final_lr; 0 = train.steps as the run began: a longer run keeps final_lr, or is given more here
        final_lr=resume(1e-5),  # learning rate after decay_steps
        b1=0.9,
        b2=0.99,
        eps=1e-8,
        weight_decay=0.01,  # decoupled, on kernels only: never on norms, biases or embeddings
        clip=1.0,  # global gradient norm; 0 = no clipping
        accumulate=resume(1),  # micro-batches a step, each with noise of its own; divides batch_size
    ),
    ema=dict(decay=0.999),  # of the parameters; warmed up as min(decay, (1+n)/(10+n)) after n updates
    guard=dict(  # a loss or gradient that is not finite: its update is never taken, and
        policy=resume("skip"),  # skip: the run goes on, guard.skips times in a row | rollback: back to the last good checkpoint | stop
        skips=resume(10),  # updates left out in a row, at most; then the run is rolled back
        rollbacks=resume(3),  # at most, each with another order of the data and other noise; then the run stops
        spike=resume(10.0),  # warn of a loss that is this many standard deviations above the recent ones; 0 = never
        stall=resume(10.0),  # minutes without a step after which the log says what is waited for; 0 = never
    ),
    eval=dict(  # scores of samples against the data, while the run learns; `tinygen eval-fid` takes them of a checkpoint
        every=resume(0),  # steps between them, besides the last; 0 = never
        scores=resume("fd"),  # separated by commas: fd (Fréchet distance) | kid | pr (precision, recall) | dc (density, coverage) | is
        features=resume("efflite0"),  # what they compare: efflite0 | inception | the workdir of a classifier that this tool has trained
        preset=resume("adm"),  # how inception's pictures are resized and scaled: adm | pytorch-fid | clean
        weights=resume(""),  # inception's file; "" = where it is kept, or downloaded
        num=resume(5_000),  # samples
        split=resume("train"),  # that they are compared with: train | validation
        raw=resume(False),  # of the raw weights too, which takes as long again
        best=resume(True),  # keep the checkpoint whose averaged weights have the best of the first of the scores
    ),
    mesh=dict(  # devices an axis; one axis may be -1 = the rest
        data=resume(-1),  # batch split, parameters replicated
        fsdp=resume(1),  # batch and parameters split
        tensor=resume(1),  # products split by the model's SHARDING table
    ),
    distributed=resume(""),  # several processes: auto = as Slurm, Open MPI, Kubernetes or TPU say | HOST:PORT,PROCESSES,PROCESS; "" = one
    distributed_timeout=resume(120),  # seconds to wait for the other processes to start, and later for a sign of life of each
    sharding=dict(
        min_size=resume(2**16),  # elements; leaves smaller than this are replicated, not split by fsdp
        rules=resume(()),  # ((regular expression of leaves' paths, (axis or None, ...) or None = whole), ...), before the model's own
    ),
    train=dict(
        steps=resume(2_000),  # optimizer steps of the whole run
        steps_per_call=resume(1),  # steps that the device takes on its own, at most: more where a step takes less than a millisecond or two
        log_every=resume(50),  # steps between lines of metrics.jsonl and TensorBoard points
        eval_every=resume(500),  # steps between held-out losses, raw and EMA weights; 0 = never
        eval_num=resume(0),  # held-out examples a loss is taken over, the first of the split; 0 = all
        preview_every=resume(500),  # steps between sample grids, besides 1, 2, 5 x 10^k before the first; 0 = none at all
        preview_num=resume(64),  # samples a grid
        checkpoint_every=resume(500),  # steps between checkpoints, besides the last step and a signal; 0 = only those
        keep=resume(2),  # newest checkpoints kept
        keep_every=resume(0),  # besides, keep those whose step is a multiple of this; 0 = none
        writers=resume(""),  # where metrics go besides files and TensorBoard: rows of WRITERS, "wandb"; "" = none
    ),
)

TABLES = {"model": MODELS, "objective": OBJECTIVES, "data": DATASETS}

CHOICES: dict[str, tuple[str, ...]] = {  # what keys with a few names may be, so that a typo is found before anything heavy is imported
    "precision": ("auto", "float32", "bfloat16", "bfloat16_activations"),
    "attention": ("auto", "plain", "blockwise", "cudnn"),
    "remat": ("none", "products", "full"),
    "text.tokens": ("", "bytes", "bpe"),
    "guard.policy": ("skip", "rollback", "stop"),
    "eval.preset": ("adm", "pytorch-fid", "clean"),
    "eval.split": ("train", "validation"),
    "optim.schedule": ("constant", "linear", "warmup_cosine"),
}

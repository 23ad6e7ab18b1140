"""Every key of a configuration, once: its default, its meaning and constraint, and whether it may change on resume.

`data`, `model` and `objective` name a row of a table below; the row's keywords and their defaults join that section.
Keys marked RESUME may change when a run is started again in its workdir; any other change is refused. Of the model's and the
objective's keys, those and the ones marked STAGE may differ from those of the run that `init.ckpt` names. What is set in one row
follows to another row that has the key, unless it is marked OWN. `tinygen keys` prints all of this.
"""

from tinygen.config.data import DATASETS
from tinygen.config.key import BELOW_ONE, OWN, POSITIVE, RESUME, STAGE, Key, Mark, Section, key
from tinygen.config.models import MODELS
from tinygen.config.objectives import OBJECTIVES

__all__ = ["DATASETS", "MODELS", "OBJECTIVES", "OWN", "RESUME", "SCHEMA", "STAGE", "TABLES", "Key", "Mark", "Section", "key"]

LAST_STEP = 2**31 - 1  # an int32
LARGEST_BATCH = 2**20  # examples; more is a slip, and would take all memory before it is seen to be one
MANY = 10**6

SCHEMA = Section(
    "the whole run",
    seed=key(0, "root of every random stream: initialization, data order, noise, samples", low=0, high=2**32 - 1),
    batch_size=key(
        64,
        "examples per optimizer step, over all devices; a multiple of optim.accumulate x mesh.data x mesh.fsdp",
        low=1,
        high=LARGEST_BATCH,
    ),
    precision=key(
        "auto",
        "auto: by machine; float32: exact; bfloat16: operands of matrix products; bfloat16_activations: activations too",
        RESUME,
        choices=("auto", "float32", "bfloat16", "bfloat16_activations"),
    ),
    deterministic=key(
        False, "the same bits every time on a GPU too, so that a resumed run equals an uninterrupted one; slower there", RESUME
    ),
    attention=key(
        "auto",
        "auto: by machine, length and objective; blockwise: less memory; cudnn: NVIDIA GPUs",
        RESUME,
        choices=("auto", "plain", "blockwise", "cudnn"),
    ),
    remat=key(
        "none",
        "what the backward pass recomputes to save memory (on a CPU only with scan); products: all but matrix products",
        RESUME,
        choices=("none", "products", "full"),
    ),
    scan=key(
        0, "blocks per iteration of a loop over all, which compiles in the time of one iteration; divides model.depth; 0: no loop", RESUME
    ),
    data=Section(
        "what the model learns from",
        name=key("pixel_faces", "the data set", choices=DATASETS),
        overfit=key(0, "train on the first N examples only; 0: all. The first thing to try on a new model", low=0),
    ),
    text=Section(
        "captions as a condition, of data that have them",
        tokens=key(
            "",
            "how captions become tokens; '': captions are not read; bpe: a byte-level BPE, trained on the captions at the start",
            choices=("", "bytes", "bpe"),
        ),
        embeddings=key("", "in place of tokens: a folder by scripts/prepare/prepare_text.py; its content may not change on resume", RESUME),
        length=key(64, "tokens read of a caption; the end of a longer one is cut off"),
        vocabulary=key(1024, "most tokens of bpe, padding and the 256 bytes included"),
    ),
    model=Section("the network", name=key("microdit", "the model", choices=MODELS)),
    objective=Section("what it is trained for, and how it is sampled", name=key("flow", "the objective", choices=OBJECTIVES)),
    init=Section(
        "what the first start begins from; a run with a checkpoint of its own resumes from that",
        ckpt=key(
            "", "workdir or checkpoint of another run of this model: its averaged weights, a fresh optimizer, step 0; '': random weights"
        ),
        partial=key(False, "from a run of any model, take the arrays that fit by name, shape and dtype"),
    ),
    optim=Section(
        "AdamW and its learning rate",
        lr=key(1e-3, "peak learning rate", RESUME, low=POSITIVE),
        schedule=key(
            "warmup_cosine",
            "linear: from lr to final_lr over decay_steps, then constant",
            RESUME,
            choices=("constant", "linear", "warmup_cosine"),
        ),
        warmup=key(100, "steps of linear warm-up to lr (warmup_cosine); fewer than decay_steps", RESUME, low=0),
        decay_steps=key(0, "steps until final_lr; 0: train.steps as the run began, so that a longer run keeps final_lr", RESUME, low=0),
        final_lr=key(1e-5, "learning rate after decay_steps", RESUME, low=0),
        b1=key(0.9, "decay of the first moment", low=0, high=BELOW_ONE),
        b2=key(0.99, "decay of the second moment", low=0, high=BELOW_ONE),
        eps=key(1e-8, "added to the root of the second moment", low=POSITIVE),
        weight_decay=key(0.01, "decoupled, on kernels only: never on norms, biases or embeddings", low=0),
        clip=key(1.0, "largest global gradient norm; 0: no clipping", low=0),
        accumulate=key(1, "micro-batches per step, each with its own noise; divides batch_size", RESUME, low=1),
    ),
    ema=Section(
        "the average of the parameters, which is evaluated and sampled",
        decay=key(0.999, "warmed up as min(decay, (1+n)/(10+n)) after n updates", low=0, high=BELOW_ONE),
    ),
    guard=Section(
        "a non-finite loss or gradient, whose update is never taken; stalls",
        policy=key(
            "skip",
            "skip: go on, up to guard.skips times in a row; rollback: return to the last good checkpoint; stop: end the run",
            RESUME,
            choices=("skip", "rollback", "stop"),
        ),
        skips=key(10, "most consecutive updates skipped before the run is rolled back", RESUME, low=0, high=MANY),
        rollbacks=key(3, "most rollbacks, each with another data order and other noise, before the run stops", RESUME, low=0, high=MANY),
        spike=key(10.0, "warn of a loss this many standard deviations above the recent ones; 0: never", RESUME, low=0, high=MANY),
        stall=key(10.0, "minutes without a step after which the log says what is being waited for; 0: never", RESUME, low=0, high=MANY),
    ),
    eval=Section(
        "scores of samples against the data while the run learns; `tinygen eval-fid` scores a checkpoint",
        every=key(0, "steps between scores, besides the last step; 0: never", RESUME, low=0),
        scores=key("fd", "comma-separated: fd (Fréchet distance), kid, pr (precision, recall), dc (density, coverage), is", RESUME),
        features=key("efflite0", "what is compared: efflite0, inception, or the workdir of a classifier trained by tinygen", RESUME),
        preset=key("adm", "how inception's images are resized and scaled", RESUME, choices=("adm", "pytorch-fid", "clean")),
        weights=key("", "inception's file; '': its usual place, or downloaded", RESUME),
        num=key(5_000, "samples", RESUME, low=2),
        split=key("train", "what samples are compared with", RESUME, choices=("train", "validation")),
        raw=key(False, "score the raw weights too, which takes as long again", RESUME),
        best=key(True, "keep the checkpoint whose averaged weights have the best of the first of the scores", RESUME),
    ),
    mesh=Section(
        "devices per axis; one axis may be -1: the rest",
        data=key(-1, "the batch is split, parameters are replicated", RESUME),
        fsdp=key(1, "the batch and the parameters are split", RESUME),
        tensor=key(1, "matrix products are split, by the model's SHARDING table", RESUME),
    ),
    distributed=key("", "several processes: auto (by Slurm, Open MPI, Kubernetes or TPU) or HOST:PORT,PROCESSES,PROCESS; '': one", RESUME),
    distributed_timeout=key(120, "seconds to wait for the other processes to start, and later for a sign of life of each", RESUME, low=1),
    sharding=Section(
        "how parameters are split over the mesh",
        min_size=key(2**16, "elements; smaller arrays are replicated, not split by fsdp", RESUME, low=0),
        rules=key(
            (), "((regular expression of parameter paths, (axis or None, ...) or None for whole), ...), before the model's own", RESUME
        ),
    ),
    train=Section(
        "length of the run, and what it does besides",
        steps=key(2_000, "optimizer steps of the whole run", RESUME, low=1, high=LAST_STEP),
        steps_per_call=key(
            1, "most steps the device takes per call: more helps where a step takes less than a millisecond or two", RESUME, low=1
        ),
        log_every=key(50, "steps between lines of metrics.jsonl and TensorBoard points", RESUME, low=1),
        eval_every=key(500, "steps between held-out losses, of raw and averaged weights; 0: never", RESUME, low=0),
        eval_num=key(0, "held-out examples per loss, the first of the split; 0: all", RESUME, low=0),
        preview_every=key(500, "steps between previews, besides 1, 2, 5 x 10^k before the first; 0: none at all", RESUME, low=0),
        preview_num=key(64, "samples per preview", RESUME, low=1),
        checkpoint_every=key(500, "steps between checkpoints, besides the last step and a signal; 0: only those", RESUME, low=0),
        keep=key(2, "newest checkpoints kept", RESUME, low=1),
        keep_every=key(0, "also keep checkpoints whose step is a multiple of this; 0: none", RESUME, low=0),
        writers=key("", "where metrics go besides files and TensorBoard: wandb; '': nowhere", RESUME),
    ),
)

TABLES = {"model": MODELS, "objective": OBJECTIVES, "data": DATASETS}

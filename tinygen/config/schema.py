"""The schema: every configuration key with its default, meaning and constraint, and whether it may change on resume.

`data`, `model` and `objective` name a row of a table below; the row's keys and defaults join that section.
Keys marked RESUME may change when a run is resumed in its workdir; any other change is refused. Model and objective keys marked
RESUME or STAGE may differ from the run that `init.ckpt` names. A value set in one row carries over to another row that has the key,
unless it is marked OWN. `tinygen keys` prints all of this.
"""

from tinygen.config.data import DATASETS
from tinygen.config.key import BELOW_ONE, POSITIVE, RESUME, Section, key
from tinygen.config.models import MODELS
from tinygen.config.objectives import OBJECTIVES

LAST_STEP = 2**31 - 1  # an int32
LARGEST_BATCH = 2**20  # examples; more is a typo, and would exhaust memory before any other check
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
        "auto: by hardware; float32: exact; bfloat16: operands of matrix products; bfloat16_activations: activations too",
        RESUME,
        choices=("auto", "float32", "bfloat16", "bfloat16_activations"),
    ),
    deterministic=key(False, "bitwise reproducible on a GPU too, so that resuming is exact; slower there", RESUME),
    attention=key(
        "auto",
        "auto: by hardware, length and objective; blockwise: less memory; cudnn: NVIDIA GPUs",
        RESUME,
        choices=("auto", "plain", "blockwise", "cudnn"),
    ),
    remat=key(
        "none",
        "what the backward pass recomputes to save memory (on a CPU only with scan); products: all but matrix products; full: all",
        RESUME,
        choices=("none", "products", "full"),
    ),
    scan=key(0, "blocks per iteration of a loop, for faster compilation; divides model.depth; 0: unrolled", RESUME),
    data=Section(
        "training data",
        name=key("pixel_faces", "the data set", choices=DATASETS),
        overfit=key(0, "train on the first N examples only; 0: all. A first sanity check of a new model", low=0),
    ),
    text=Section(
        "captions as a condition, for data that has them",
        tokens=key(
            "",
            "tokenizer of captions; '': captions are not used; bpe: a byte-level BPE trained on the captions at the start",
            choices=("", "bytes", "bpe"),
        ),
        embeddings=key(
            "",
            "caption embeddings in place of tokens: a folder by scripts/prepare/prepare_text.py; its content may not change on resume",
            RESUME,
        ),
        length=key(64, "maximum tokens per caption; longer ones are truncated"),
        vocabulary=key(1024, "maximum vocabulary of bpe, including padding and the 256 bytes"),
    ),
    model=Section("the network", name=key("microdit", "the model", choices=MODELS)),
    objective=Section("training loss and sampling", name=key("flow", "the objective", choices=OBJECTIVES)),
    init=Section(
        "warm start; a run with a checkpoint of its own resumes from that instead",
        ckpt=key(
            "", "workdir or checkpoint of another run of this model: its averaged weights, a fresh optimizer, step 0; '': random weights"
        ),
        partial=key(False, "accept any model, and load the arrays that match by name, shape and dtype"),
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
        decay_steps=key(0, "steps until final_lr; 0: train.steps at the first start, kept thereafter", RESUME, low=0),
        final_lr=key(1e-5, "learning rate after decay_steps", RESUME, low=0),
        b1=key(0.9, "decay of the first moment", low=0, high=BELOW_ONE),
        b2=key(0.99, "decay of the second moment", low=0, high=BELOW_ONE),
        eps=key(1e-8, "added to the square root of the second moment", low=POSITIVE),
        weight_decay=key(0.01, "decoupled weight decay of kernels; norms, biases and embeddings are not decayed", low=0),
        clip=key(1.0, "maximum global gradient norm; 0: no clipping", low=0),
        accumulate=key(1, "micro-batches per step, each with its own noise; divides batch_size", RESUME, low=1),
    ),
    ema=Section(
        "exponential moving average of the parameters, used for evaluation and sampling",
        decay=key(0.999, "decay rate, warmed up as min(decay, (1+n)/(10+n)) after n updates", low=0, high=BELOW_ONE),
    ),
    guard=Section(
        "non-finite losses and gradients, whose updates are always skipped; loss spikes; stalls",
        policy=key(
            "skip",
            "skip: continue, up to guard.skips consecutive skips; rollback: return to the last good checkpoint; stop: end the run",
            RESUME,
            choices=("skip", "rollback", "stop"),
        ),
        skips=key(10, "maximum consecutive skips before a rollback", RESUME, low=0, high=MANY),
        rollbacks=key(3, "rollbacks, each with new data order and noise, before the run stops", RESUME, low=0, high=MANY),
        spike=key(10.0, "warn of a loss this many standard deviations above recent ones; 0: never", RESUME, low=0, high=MANY),
        stall=key(10.0, "minutes without a step before the log reports the stall; 0: never", RESUME, low=0, high=MANY),
    ),
    eval=Section(
        "scores of samples during training; `tinygen eval-fid` scores a checkpoint",
        every=key(0, "steps between scores, besides the last step; 0: never", RESUME, low=0),
        scores=key("fd", "comma-separated: fd (Fréchet distance), kid, pr (precision, recall), dc (density, coverage), is", RESUME),
        features=key("efflite0", "feature extractor: efflite0, inception, or the workdir of a classifier", RESUME),
        preset=key("adm", "resizing and scaling for inception", RESUME, choices=("adm", "pytorch-fid", "clean")),
        weights=key("", "weights file of inception; '': the default location, or a download", RESUME),
        num=key(5_000, "number of samples", RESUME, low=2),
        split=key("train", "reference split", RESUME, choices=("train", "validation")),
        raw=key(False, "score the raw weights too, which doubles the time", RESUME),
        best=key(True, "keep the checkpoint whose averaged weights are best by the first score", RESUME),
    ),
    mesh=Section(
        "devices per mesh axis; one axis may be -1: the remaining devices",
        data=key(-1, "data parallelism: shards the batch, replicates parameters", RESUME),
        fsdp=key(1, "fully sharded data parallelism: shards the batch and the parameters", RESUME),
        tensor=key(1, "tensor parallelism: shards matrix products by the model's SHARDING table", RESUME),
    ),
    distributed=key(
        "", "multi-process: auto (Slurm, Open MPI, Kubernetes, TPU) or HOST:PORT,PROCESSES,PROCESS; '': a single process", RESUME
    ),
    distributed_timeout=key(120, "seconds to wait for other processes at the start, and later for the heartbeat of each", RESUME, low=1),
    sharding=Section(
        "sharding of parameters over the mesh",
        min_size=key(2**16, "elements; smaller arrays are replicated, not sharded by fsdp", RESUME, low=0),
        rules=key(
            (),
            "((regular expression for parameter paths, (axis or None, ...) or None for replicated), ...), tried before the model's own",
            RESUME,
        ),
    ),
    train=Section(
        "length of the run and periodic work",
        steps=key(2_000, "optimizer steps of the whole run", RESUME, low=1, high=LAST_STEP),
        steps_per_call=key(1, "maximum steps per device call; more help if a step takes less than 2 ms", RESUME, low=1),
        log_every=key(50, "steps between lines of metrics.jsonl and TensorBoard points", RESUME, low=1),
        eval_every=key(500, "steps between held-out losses, of raw and averaged weights; 0: never", RESUME, low=0),
        eval_num=key(0, "held-out examples per loss, from the start of the split; 0: all", RESUME, low=0),
        preview_every=key(500, "steps between previews, besides steps 1, 2, 5 x 10^k before the first; 0: no previews", RESUME, low=0),
        preview_num=key(64, "samples per preview", RESUME, low=1),
        checkpoint_every=key(500, "steps between checkpoints, besides the last step and after a signal; 0: only those", RESUME, low=0),
        keep=key(2, "newest checkpoints to keep", RESUME, low=1),
        keep_every=key(0, "also keep checkpoints whose step is a multiple of this; 0: none", RESUME, low=0),
        writers=key("", "additional metric writers besides files and TensorBoard: wandb; '': none", RESUME),
    ),
)

TABLES = {"model": MODELS, "objective": OBJECTIVES, "data": DATASETS}

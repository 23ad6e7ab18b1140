"""Every key of a configuration, once: its default, its unit or constraint, and whether it may change on resume.

`data`, `model` and `objective` name a row of a table below; the row's keywords and their defaults join that section.
Keys wrapped in `resume(...)` may change when a run is started again in its workdir; any other change is refused. Of the model's and
the objective's keys, those too and the ones wrapped in `stage(...)` may differ from those of the run that `init.ckpt` names.
"""

from typing import Any, NamedTuple


class resume(NamedTuple):
    """Marks the default of a key that may change in an existing workdir."""

    default: Any


class stage(NamedTuple):
    """Marks the default of a key that says how weights are trained, not what they mean: it may differ where they begin another run."""

    default: Any


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
        lr=1e-3,  # peak learning rate
        schedule="warmup_cosine",  # constant | linear (lr -> final_lr over decay_steps, then constant) | warmup_cosine
        warmup=100,  # steps of linear warm-up to lr (warmup_cosine)
        decay_steps=0,  # steps until final_lr; 0 = train.steps as the run began: a longer run then keeps final_lr
        final_lr=1e-5,  # learning rate after decay_steps
        b1=0.9,
        b2=0.99,
        eps=1e-8,
        weight_decay=0.01,  # decoupled, on kernels only: never on norms, biases or embeddings
        clip=1.0,  # global gradient norm; 0 = no clipping
        accumulate=1,  # micro-batches a step; divides batch_size
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

MODELS: dict[str, dict[str, Any]] = {
    "microdit": dict(
        patch=2,  # pixels a side of a patch; divides height and width
        width=256,  # features a token; a multiple of heads
        depth=8,  # blocks
        heads=4,  # attention heads; width / heads is even
        mlp_ratio=4.0,  # hidden size of SwiGLU is 2/3 x ratio x width, rounded up to mlp_multiple
        mlp_ratio_first=0.0,  # of the first block, from which ratios rise in a straight line to mlp_ratio in the last; 0 = all have that
        attention_first=1.0,  # share of the heads that the first block has, likewise
        mlp_multiple=64,  # what the device's tiles like: 64 on a CPU, 256 on GPU and TPU
        mask=stage(0.0),  # share of an image's patches that blocks do not see in training, nor the loss; 0 = they see all. None in sampling
        mixer_depth=0,  # blocks before that, which see all patches
        mixer_width=0,  # features a token there; a multiple of width / heads; 0 = width
        experts=0,  # feed-forwards of every second block, which choose their patches; 0 = one that takes all
        capacity=2.0,  # experts that a patch has on average
        positions="sincos",  # sincos: added to the patches | rope: queries and keys are turned by rows and columns; width / heads is 4 x n
        position_grid=stage(0),  # rows of patches that positions span, for more pixels than the first stage had; 0 = all that there are
        text_depth=2,  # blocks of self-attention over a caption, before all other blocks attend to it; where there are captions
        text_width=0,  # features of its tokens; a multiple of width / heads; 0 = width
        adaln="block",  # block: a modulation layer a block | shared: one for all, plus a learned table a block
        qk_norm=True,  # RMS norm of queries and keys, a head
        time_scale=1000.0,  # of t in its sincos embedding: 1000 for flow matching, 1 for EDM and MeanFlow
    ),
    "mlp": dict(
        hidden=1024,  # features of a hidden layer; a multiple of mesh.tensor
        depth=2,  # hidden layers
        dropout=stage(0.1),  # share of hidden features dropped in training
    ),
    "classifier": dict(
        width=32,  # features of the first stage; each later stage has twice as many as the one before. A multiple of groups
        stages=3,  # each halves height and width
        depth=1,  # residual blocks a stage
        groups=8,  # of features that are normalised together
        dropout=stage(0.1),  # share of the last features that is put to zero in training
    ),
    "minigpt": dict(
        width=256,  # features a token; a multiple of heads
        depth=6,  # blocks
        heads=8,  # attention heads; width / heads is even
        kv_heads=0,  # heads of keys and values, each for heads / kv_heads of the queries; 0 = heads
        feed_forward="swiglu",  # swiglu | gelu
        mlp_ratio=4.0,  # hidden features of gelu are ratio x width, of swiglu 2/3 of that, rounded up to mlp_multiple
        mlp_multiple=64,  # what the device's tiles like: 64 on a CPU, 256 on GPU and TPU
        positions="rope",  # rope: queries and keys are turned, which goes on past the window | learned: added, as GPT-2 has it
        tied=True,  # the output layer is the embedding's transpose
        dropout=stage(0.0),  # share of the features put to zero in training, of the embedding and of every block's two updates
        qk_norm=True,  # RMS norm of queries and keys, a head
        vocabulary_multiple=64,  # the embedding has a multiple of as many rows, for the device's tiles and for mesh.tensor
    ),
    "autoencoder": dict(
        widths=(32, 64, 128),  # features of a stage, from the whole image on; all but the last halve its sides. Multiples of groups
        depth=1,  # residual blocks a stage of the encoder; the decoder's have one more
        latent=4,  # channels of a latent
        groups=8,  # of features that are normalised together; the public ones: 32, widths=(128, 256, 512, 512), depth=2
    ),
}

OBJECTIVES: dict[str, dict[str, Any]] = {
    "flow": dict(
        t_mean=stage(0.0),  # t = sigmoid(N(t_mean, t_std)): 0 = data, 1 = noise
        t_std=stage(1.0),
        cond_drop=stage(0.1),  # share of examples trained without their condition; guidance needs some
        sampler=resume("heun"),  # a row of SAMPLERS: euler | heun
        nfe=resume(50),  # network evaluations a sample, guidance's included
        guidance=resume(1.5),  # w in v_null + w (v_cond - v_null); 1 = off
        guidance_interval=resume((0.0, 1.0)),  # of t, where guidance acts
    ),
    "edm": dict(  # wants model.time_scale=1
        sigma_data=0.5,  # standard deviation of the data, as it is in a batch
        p_mean=stage(-1.2),  # ln σ = N(p_mean, p_std): -0.6 and 1.2 in MicroDiT's latents at 256x256
        p_std=stage(1.2),  # how far noise levels spread about exp(p_mean), a factor of e each
        cond_drop=stage(0.1),  # share of examples trained without their condition; guidance needs some
        sampler=resume("heun"),  # a row of SAMPLERS: euler | heun
        nfe=resume(50),  # network evaluations a sample, guidance's included
        guidance=resume(1.5),  # w in D_null + w (D_cond - D_null); 1 = off
        guidance_interval=resume((0.0, 1000.0)),  # of σ, where guidance acts
        sigma_min=resume(0.002),  # the last noise level before 0
        sigma_max=resume(80.0),  # the first
        rho=resume(7.0),  # levels are even in σ^(1/rho): the larger, the more of them are small
    ),
    "regression": dict(
        target_noise=stage(0.0),  # standard deviation of Gaussian noise on the targets, drawn anew each step; never in evaluation
    ),
    "classification": dict(
        label_smoothing=stage(0.0),  # share of the target that is spread over all classes evenly; never in evaluation
    ),
    "autoregressive": dict(
        label_smoothing=stage(0.0),  # share of the target that is spread over all tokens evenly; never in evaluation
        z_loss=stage(0.0),  # weight of the squared logarithm of softmax's divisor, which keeps logits from drifting; 1e-4 in PaLM
        logits_mib=resume(64.0),  # logits that stand at once, of all devices; the loss of a large vocabulary is taken in pieces of that
        temperature=resume(1.0),  # of the distribution that text is drawn from; 0 = always the most likely token
        top_k=resume(0),  # draw from the k most likely tokens; 0 = from all
        top_p=resume(1.0),  # from the fewest of them that have this probability together; 1 = from all
        min_p=resume(0.0),  # from those with at least this share of the most likely one's probability; 0 = from all
        repetition_penalty=resume(1.0),  # divides the logits of tokens that there have been; 1 = off
        new_tokens=resume(256),  # of a sample at most, the prompt not counted; a document may end before
    ),
    "autoencoder": dict(
        kl_weight=1e-6,  # of the latents' divergence from N(0, 1), nats an image, beside the mean absolute error of its values
    ),
}

READING: dict[str, Any] = dict(  # how all data sets of text become tokens
    tokenizer="bytes",  # bytes | characters (what more is than a byte has a token) | bpe (made of the documents) | gpt2
    vocabulary=1024,  # tokens of bpe at most, the 256 bytes and the end of a document included
    files=resume(""),  # the folder of GPT-2's vocab.bpe and encoder.json; "" = those of an installed package (extra gpt2)
    length=256,  # tokens of a window, which is an example
    pack=True,  # windows follow each other all over the documents; False: each document begins one of its own, and the rest is padding
)

DATASETS: dict[str, dict[str, Any]] = {
    "digits": dict(label="label"),  # 5,000 MNIST digits, 28x28 grey, 10 classes; label="" = no condition
    "digits8": dict(label="label"),  # 1,797 digits, 8x8 grey, 10 classes
    "pixel_faces": dict(label="hair_color"),  # 10,000 faces, 16x16 RGB; label = the attribute to condition on, or ""
    "sine": dict(  # y = sin x on [-π, π]
        num=4096,  # examples to train on
        held_out=512,  # others, from the same interval
    ),
    "folder": dict(  # any tree of images; its folders train/ and validation/ (or val/, test/), where there is nothing else, are the splits
        path=resume(""),  # the folder; its content is what may not change on resume
        size=64,  # pixels a side
        fit="crop",  # crop: shorter side to size, middle kept | pad: longer side to size, the rest background
        channels=3,  # 1 = grey, 3 = RGB
        background="white",  # what transparency and padding show: a colour's name, or #rrggbb
        min_side=16,  # pixels; images with a shorter side are left out
        label="auto",  # auto: folder if all images lie in two or more | folder: the first below path | "" = none | a key of metadata.jsonl
        validation=0.05,  # share of the images held out, at least one; without effect where folders are the splits
        flip=False,  # mirror half of the training images, another half each epoch
    ),
    "avatars": dict(  # drawn faces, RGB: needs tinygen[avatars] to draw them, once
        style="micah",  # a row of tinygen.data.avatar_styles.STYLES
        num=20_000,  # faces, the held-out twentieth included
        size=64,  # pixels a side; they are drawn at 64, and made smaller
        label="hair_color",  # the attribute to condition on, or ""
        flip=False,  # mirror half of the training images
        data_dir=resume(""),  # where TFDS keeps prepared sets; "" = its own place, ~/tensorflow_datasets
    ),
    "celeb_a": dict(  # 202,599 photographs of faces, through TFDS
        label="attributes/Smiling",  # one of 40 attributes, or ""
        size=64,  # pixels a side
        fit="crop",  # crop the middle | pad to a square
        flip=True,  # mirror half of the training images
        data_dir=resume(""),  # where TFDS keeps prepared sets
    ),
    "latents": dict(  # of images, by an autoencoder: what scripts/prepare_latents.py has written
        path=resume(""),  # the folder; its content is what may not change on resume
        autoencoder=resume(""),  # what decodes them: a .safetensors file or a run; "" = what encoded them, where it was then
        sample=True,  # draw each training latent from its posterior, anew each epoch; otherwise its mean
        label=True,  # with the labels that the images had, if they had any
    ),
    "tfds": dict(  # any image set of TensorFlow Datasets
        dataset="",  # a name that TFDS knows (cifar10, mnist, name/config:version), or the folder of a prepared builder
        train="train",  # split, as TFDS writes them: train, train[:50%], train+test
        validation="",  # split; "" = validation or test, or else the last twentieth of train
        image="",  # the image feature; "" = the only one
        label="auto",  # a ClassLabel or bool feature, nested ones as a/b; auto = the only ClassLabel, if there is one; "" = none
        size=0,  # pixels a side; 0 = as stored
        fit="crop",  # crop the middle | pad to a square
        channels=0,  # 1 grey | 3 RGB | 0 as stored
        flip=False,  # mirror half of the training images
        data_dir=resume(""),  # where TFDS keeps prepared sets
    ),
    "shakespeare": READING,  # 14 plays to train on, two held out
    "text": dict(  # plain files, UTF-8
        path=resume(""),  # a file, or a folder of .txt files; its content is what may not change on resume
        marker="<|endoftext|>",  # what stands between two documents; "" = each file is one
        validation=0.05,  # share of the documents held out, at least one; of a lone document its last part
        **READING,
    ),
    "tfds_text": dict(  # any set of TensorFlow Datasets with a text feature: an example is a document
        dataset="",  # a name that TFDS knows (tiny_shakespeare, lm1b, name/config:version), or the folder of a prepared builder
        train="train",  # split, as TFDS writes them: train, train[:50%], train+test
        validation="",  # split; "" = validation or test, or else the last twentieth of train
        feature="",  # the text feature; "" = the only one
        data_dir=resume(""),  # where TFDS keeps prepared sets
        **READING,
    ),
}

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

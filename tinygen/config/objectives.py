"""Keys of the objectives, by name: the rows of `objective` that `tinygen.build` constructs."""

from typing import Any

from tinygen.config.key import OWN, RESUME, STAGE, Section, key

SAMPLERS = ("euler", "heun", "midpoint", "rk4", "dpmpp_2m", "edm_heun", "sde", "average", "dopri5")
TOKEN_SAMPLERS = ("confidence", "halton", "ancestral", "unrolled")
TIME_GRIDS = ("uniform", "logit_normal", "shifted")
DROP = "probability of dropping the condition in training; guidance needs more than 0"
SHIFT = "shift s of time_grid=shifted: t -> s t / (1 + (s - 1) t); a larger one puts more steps near noise"

SOLVER: dict[str, Any] = dict(  # of objectives that are sampled by an ODE or SDE solver
    cond_drop=key(0.1, DROP, STAGE),
    sampler=key(
        "heun",
        "ODE or SDE solver; dopri5 is adaptive, sde stochastic; average is for objectives that learn an average velocity",
        RESUME,
        choices=SAMPLERS,
    ),
    nfe=key(50, "network evaluations per sample, including those of guidance", RESUME),
    tolerance=key(1e-3, "error tolerance per step of sampler=dopri5, both absolute and relative", RESUME),
)
AVERAGE: dict[str, Any] = dict(  # of objectives that learn an average velocity
    t_mean=key(-0.4, "t and r are two draws of sigmoid(N(t_mean, t_std)), t the larger", STAGE),
    t_std=key(1.0, "see t_mean", STAGE),
    cond_drop=key(0.1, DROP, STAGE),
    power=key(1.0, "p of an example's weight 1 / (S + c)^p, S its sum of squared errors; 0: equal weights", STAGE),
    offset=key(0.01, "c of the weight, see power", STAGE),
    sampler=key("average", "steps of the average velocity; no other sampler is supported", OWN, RESUME, choices=SAMPLERS),
    nfe=key(1, "network evaluations per sample, one per step", OWN, RESUME),
    time_grid=key(
        "uniform", "logit_normal: distributed as a draw of t in training; shifted: more steps near noise", RESUME, choices=TIME_GRIDS
    ),
    shift=key(3.0, SHIFT, RESUME),
)

OBJECTIVES: dict[str, Section] = {
    "flow": Section(
        "flow matching",
        t_mean=key(0.0, "t = sigmoid(N(t_mean, t_std)): 0 is data, 1 is noise", STAGE),
        t_std=key(1.0, "see t_mean", STAGE),
        **SOLVER,
        guidance=key(1.5, "guidance weight w in v_null + w (v_cond - v_null); 1: off", RESUME),
        guidance_interval=key((0.0, 1.0), "interval of t where guidance is applied", RESUME),
        time_grid=key(
            "uniform",
            "steps of all samplers but dopri5; logit_normal: distributed as t in training; shifted: more steps near noise",
            RESUME,
            choices=TIME_GRIDS,
        ),
        shift=key(3.0, SHIFT, RESUME),
    ),
    "edm": Section(
        "EDM; use with model.time_scale=1",
        sigma_data=key(0.5, "standard deviation of the data in a batch"),
        p_mean=key(-1.2, "ln σ ~ N(p_mean, p_std): -0.6 and 1.2 for MicroDiT's latents at 256x256", STAGE),
        p_std=key(1.2, "standard deviation of ln σ", STAGE),
        **SOLVER,
        guidance=key(1.5, "guidance weight w in D_null + w (D_cond - D_null); 1: off", RESUME),
        guidance_interval=key((0.0, 1000.0), "interval of σ where guidance is applied", OWN, RESUME),
        sigma_min=key(0.002, "the last noise level before 0", RESUME),
        sigma_max=key(80.0, "the first noise level", RESUME),
        rho=key(7.0, "noise levels are uniform in σ^(1/rho): a larger rho puts more of them near sigma_min", RESUME),
    ),
    "meanflow": Section(
        "MeanFlow with built-in guidance; use with model.time_scale of 100 or less, such as 16",
        equal=key(0.75, "share of examples with r = t, where the average velocity is the velocity", STAGE),
        omega=key(1.0, "guidance: the target for v is ω v + (1 - ω - κ) u_null + κ u_cond, an effective weight of ω / (1 - κ)"),
        kappa=key(0.5, "κ of the target, see omega; omega=1 and kappa=0: no guidance"),
        omega_interval=key((0.0, 1.0), "interval of t where guidance is applied"),
        **AVERAGE,
    ),
    "improved_meanflow": Section(
        "improved MeanFlow, conditioned on guidance; use with model.time_scale of 100 or less, such as 16",
        equal=key(0.5, "share of examples with r = t", STAGE),
        velocity=key(
            "head",
            "direction of the derivative; head: a second prediction of the network; boundary: u(z, t, t)",
            choices=("head", "boundary"),
        ),
        omega_max=key(8.0, "largest guidance weight in training, drawn log-uniformly from 1; 1: no guidance"),
        guidance=key(1.5, "guidance weight ω when sampling; 1: off", RESUME),
        guidance_interval=key((0.0, 1.0), "interval of t where guidance is applied; contains 0.5", RESUME),
        **AVERAGE,
    ),
    "regression": Section(
        "mean squared error", target_noise=key(0.0, "standard deviation of Gaussian noise added to the targets in training", STAGE)
    ),
    "classification": Section(
        "cross-entropy of labels",
        label_smoothing=key(0.0, "probability mass of the target spread uniformly over all classes in training", STAGE),
    ),
    "autoregressive": Section(
        "cross-entropy of the next token",
        label_smoothing=key(0.0, "probability mass of the target spread uniformly over all tokens in training", STAGE),
        z_loss=key(0.0, "weight of log² Z, Z the softmax normalizer, which keeps logits from drifting; 1e-4 in PaLM", STAGE),
        logits_mib=key(64.0, "MiB of logits held at once, over all devices; more are computed in chunks", RESUME),
        temperature=key(1.0, "sampling temperature; 0: greedy", RESUME),
        top_k=key(0, "sample from the k most likely tokens; 0: all", RESUME),
        top_p=key(1.0, "nucleus sampling: keep the smallest set of tokens whose probability sums to at least p; 1: off", RESUME),
        min_p=key(0.0, "drop tokens less likely than this share of the most likely token's probability; 0: off", RESUME),
        repetition_penalty=key(1.0, "penalty on the logits of tokens that have already occurred; 1: off", RESUME),
        new_tokens=key(256, "maximum new tokens per sample, excluding the prompt; a document may end earlier", RESUME),
    ),
    "discrete": Section(
        "discrete diffusion of tokens",
        process=key("mask", "mask: tokens are masked, as in MaskGIT; uniform: replaced, as in SUNDAE", choices=("mask", "uniform")),
        unrolls=key(2, "predictions per step of process=uniform, each from the samples of the one before; 1: plain denoising", STAGE),
        cond_drop=key(0.1, DROP, STAGE),
        sampler=key(
            "auto",
            "confidence, halton or ancestral for process=mask; unrolled for uniform; auto: confidence or unrolled",
            OWN,
            RESUME,
            choices=("auto", *TOKEN_SAMPLERS),
        ),
        nfe=key(32, "maximum network evaluations per sample, including those of guidance", RESUME),
        guidance=key(1.0, "guidance weight w in l_null + w (l_cond - l_null), l the logits; 1: off", RESUME),
        temperature=key(1.0, "sampling temperature; 0: greedy", RESUME),
        temperature_decay=key(0.0, "share of the temperature that is lost by the last step, linearly; 0: constant", RESUME),
        top_k=key(0, "sample from the k most likely tokens; 0: all", RESUME),
        top_p=key(1.0, "nucleus sampling: keep the smallest set of tokens whose probability sums to at least p; 1: off", RESUME),
        schedule=key("cosine", "tokens revealed per step of process=mask; cosine: few at first", RESUME, choices=("cosine", "linear")),
        choice_temperature=key(4.0, "factor of the Gumbel noise on log-probabilities by which sampler=confidence ranks places", RESUME),
        remask=key(0.0, "probability of masking a revealed token again in a step of sampler=ancestral", RESUME),
        proportion=key(0.5, "share of the tokens that a step of sampler=unrolled redraws", RESUME),
        proportion_decay=key(0.0, "share of the proportion that is lost by the last step, linearly; 0: constant", RESUME),
        min_steps=key(4, "steps before sampler=unrolled may stop at tokens that the model leaves as they are", RESUME),
    ),
    "autoencoder": Section(
        "reconstruction with a KL penalty on latents",
        kl_weight=key(1e-6, "weight of the latents' KL divergence from N(0, 1), in nats per image, beside the L1 loss"),
    ),
    "tokenizer": Section(
        "reconstruction from tokens",
        commitment=key(0.25, "weight of the encoder's squared distance to the codes of quantizer=vq, beside the L1 loss"),
    ),
}

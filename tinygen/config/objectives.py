"""The keywords of objectives, by name: the rows that `tinygen.build` makes."""

from typing import Any

from tinygen.config.key import OWN, RESUME, STAGE, Section, key

SAMPLERS = ("euler", "heun", "midpoint", "rk4", "dpmpp_2m", "edm_heun", "dopri5", "sde", "average")
TIME_GRIDS = ("uniform", "logit_normal", "shifted")
SAMPLER = "how samples are integrated; dopri5 is adaptive, sde stochastic; average is for objectives that learn an average velocity"
DROP = "share of examples trained without their condition; guidance needs some"
SHIFT = "of time_grid=shifted: t -> shift t / (1 + (shift - 1) t)"
TOLERANCE = "of sampler=dopri5: a step's error, absolute and relative alike"

AVERAGE: dict[str, Any] = dict(  # of objectives that learn an average velocity
    t_mean=key(-0.4, "two draws of sigmoid(N(t_mean, t_std)): the larger is t, the smaller r", STAGE),
    t_std=key(1.0, "see t_mean", STAGE),
    cond_drop=key(0.1, DROP, STAGE),
    power=key(1.0, "p of an example's weight 1 / (S + c)^p, S its sum of squared errors; 0: all weigh the same", STAGE),
    offset=key(0.01, "c of that weight", STAGE),
    sampler=key("average", "whole steps of the average velocity; no other sampler serves it", OWN, RESUME, choices=SAMPLERS),
    nfe=key(1, "network evaluations per sample, which are its steps", OWN, RESUME),
    time_grid=key("uniform", "logit_normal: as one draw of t in training; shifted: more steps near noise", RESUME, choices=TIME_GRIDS),
    shift=key(3.0, SHIFT, RESUME),
)

OBJECTIVES: dict[str, Section] = {
    "flow": Section(
        "flow matching",
        t_mean=key(0.0, "t = sigmoid(N(t_mean, t_std)): 0 is data, 1 is noise", STAGE),
        t_std=key(1.0, "see t_mean", STAGE),
        cond_drop=key(0.1, DROP, STAGE),
        sampler=key("heun", SAMPLER, RESUME, choices=SAMPLERS),
        nfe=key(50, "network evaluations per sample, guidance's included", RESUME),
        guidance=key(1.5, "w in v_null + w (v_cond - v_null); 1: off", RESUME),
        guidance_interval=key((0.0, 1.0), "of t, where guidance acts", RESUME),
        time_grid=key(
            "uniform",
            "of samplers but dopri5; logit_normal: as t in training; shifted: more steps near noise",
            RESUME,
            choices=TIME_GRIDS,
        ),
        shift=key(3.0, SHIFT, RESUME),
        tolerance=key(1e-3, TOLERANCE, RESUME),
    ),
    "edm": Section(
        "EDM; wants model.time_scale=1",
        sigma_data=key(0.5, "standard deviation of the data, as it is in a batch"),
        p_mean=key(-1.2, "ln σ = N(p_mean, p_std): -0.6 and 1.2 in MicroDiT's latents at 256x256", STAGE),
        p_std=key(1.2, "how far noise levels spread about exp(p_mean), a factor of e each", STAGE),
        cond_drop=key(0.1, DROP, STAGE),
        sampler=key("heun", SAMPLER, RESUME, choices=SAMPLERS),
        nfe=key(50, "network evaluations per sample, guidance's included", RESUME),
        guidance=key(1.5, "w in D_null + w (D_cond - D_null); 1: off", RESUME),
        guidance_interval=key((0.0, 1000.0), "of σ, where guidance acts", OWN, RESUME),
        sigma_min=key(0.002, "the last noise level before 0", RESUME),
        sigma_max=key(80.0, "the first noise level", RESUME),
        rho=key(7.0, "levels are even in σ^(1/rho): the larger, the more of them are small", RESUME),
        tolerance=key(1e-3, TOLERANCE, RESUME),
    ),
    "meanflow": Section(
        "MeanFlow, guidance baked in; wants model.time_scale of 100 or less, such as 16",
        equal=key(0.75, "share of examples with r = t, where the average velocity is the velocity", STAGE),
        omega=key(1.0, "guidance: ω v + (1 - ω - κ) u_null + κ u_cond is learnt for v, a weight of ω / (1 - κ)"),
        kappa=key(0.5, "κ of that; omega=1 and kappa=0: no guidance"),
        omega_interval=key((0.0, 1.0), "of t, where that guidance acts"),
        **AVERAGE,
    ),
    "improved_meanflow": Section(
        "improved MeanFlow, guidance as asked for; wants model.time_scale of 100 or less, such as 16",
        equal=key(0.5, "share of examples with r = t", STAGE),
        velocity=key(
            "head",
            "what the derivative is taken along; head: a second prediction of the network's; boundary: u(z, t, t)",
            choices=("head", "boundary"),
        ),
        omega_max=key(8.0, "weights of guidance that are learnt, from 1 on, log-uniform; 1: none"),
        guidance=key(1.5, "ω that the model is given; 1: off", RESUME),
        guidance_interval=key((0.0, 1.0), "of t, where guidance acts; contains 0.5", RESUME),
        **AVERAGE,
    ),
    "regression": Section(
        "mean squared error",
        target_noise=key(0.0, "standard deviation of Gaussian noise on the targets, drawn anew each step; never in evaluation", STAGE),
    ),
    "classification": Section(
        "cross-entropy of labels",
        label_smoothing=key(0.0, "share of the target spread evenly over all classes; never in evaluation", STAGE),
    ),
    "autoregressive": Section(
        "cross-entropy of the next token",
        label_smoothing=key(0.0, "share of the target spread evenly over all tokens; never in evaluation", STAGE),
        z_loss=key(0.0, "weight of the squared log of softmax's divisor, which keeps logits from drifting; 1e-4 in PaLM", STAGE),
        logits_mib=key(
            64.0, "MiB of logits held at once, of all devices; the loss of a large vocabulary is taken in pieces of that", RESUME
        ),
        temperature=key(1.0, "of the distribution text is drawn from; 0: always the most likely token", RESUME),
        top_k=key(0, "draw from the k most likely tokens; 0: from all", RESUME),
        top_p=key(1.0, "nucleus sampling: keep the smallest set of tokens whose probability sums to at least p; 1: off", RESUME),
        min_p=key(0.0, "drop tokens with less than this share of the most likely one's probability; 0: off", RESUME),
        repetition_penalty=key(1.0, "divides the logits of tokens that have occurred; 1: off", RESUME),
        new_tokens=key(256, "most tokens of a sample, the prompt not counted; a document may end before", RESUME),
    ),
    "autoencoder": Section(
        "reconstruction and a KL penalty on latents",
        kl_weight=key(1e-6, "of the latents' divergence from N(0, 1), nats per image, beside the mean absolute error of its values"),
    ),
}

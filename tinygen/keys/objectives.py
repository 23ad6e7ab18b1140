"""The keywords of objectives, by name: the rows that `tinygen.build` makes."""

from typing import Any

from tinygen.keys.marks import own, resume, stage

AVERAGE: dict[str, Any] = dict(  # of objectives that learn an average velocity
    t_mean=stage(-0.4),  # two draws of sigmoid(N(t_mean, t_std)): the larger is t, the smaller r
    t_std=stage(1.0),
    cond_drop=stage(0.1),  # share of examples trained without their condition; guidance needs some
    power=stage(1.0),  # p of an example's weight 1 / (S + c)^p, S its sum of squared errors; 0 = all weigh the same
    offset=stage(0.01),  # c of it
    sampler=own(resume("average")),  # whole steps of the average velocity, the only one that serves it
    nfe=own(resume(1)),  # network evaluations a sample, which are its steps
    time_grid=resume("uniform"),  # uniform | logit_normal (as one draw of t in training) | shifted (more steps near noise)
    shift=resume(3.0),  # of time_grid=shifted: t -> shift t / (1 + (shift - 1) t)
)

OBJECTIVES: dict[str, dict[str, Any]] = {
    "flow": dict(
        t_mean=stage(0.0),  # t = sigmoid(N(t_mean, t_std)): 0 = data, 1 = noise
        t_std=stage(1.0),
        cond_drop=stage(0.1),  # share of examples trained without their condition; guidance needs some
        sampler=resume("heun"),  # euler | heun | midpoint | rk4 | dpmpp_2m | edm_heun | dopri5 (adaptive) | sde (stochastic)
        nfe=resume(50),  # network evaluations a sample, guidance's included
        guidance=resume(1.5),  # w in v_null + w (v_cond - v_null); 1 = off
        guidance_interval=resume((0.0, 1.0)),  # of t, where guidance acts
        time_grid=resume("uniform"),  # of samplers but dopri5: uniform | logit_normal (as t in training) | shifted (more near noise)
        shift=resume(3.0),  # of time_grid=shifted: t -> shift t / (1 + (shift - 1) t)
        tolerance=resume(1e-3),  # of sampler=dopri5: a step's error, absolute and relative alike
    ),
    "edm": dict(  # wants model.time_scale=1
        sigma_data=0.5,  # standard deviation of the data, as it is in a batch
        p_mean=stage(-1.2),  # ln σ = N(p_mean, p_std): -0.6 and 1.2 in MicroDiT's latents at 256x256
        p_std=stage(1.2),  # how far noise levels spread about exp(p_mean), a factor of e each
        cond_drop=stage(0.1),  # share of examples trained without their condition; guidance needs some
        sampler=resume("heun"),  # euler | heun | midpoint | rk4 | dpmpp_2m | edm_heun | dopri5 (adaptive) | sde (stochastic)
        nfe=resume(50),  # network evaluations a sample, guidance's included
        guidance=resume(1.5),  # w in D_null + w (D_cond - D_null); 1 = off
        guidance_interval=own(resume((0.0, 1000.0))),  # of σ, where guidance acts
        sigma_min=resume(0.002),  # the last noise level before 0
        sigma_max=resume(80.0),  # the first
        rho=resume(7.0),  # levels are even in σ^(1/rho): the larger, the more of them are small
        tolerance=resume(1e-3),  # of sampler=dopri5: a step's error, absolute and relative alike
    ),
    "meanflow": dict(  # wants model.time_scale of 100 or less, such as 16
        equal=stage(0.75),  # share of examples with r = t, where the average velocity is the velocity
        omega=1.0,  # guidance baked in: ω v + (1 - ω - κ) u_null + κ u_cond is learnt for v, a weight of ω / (1 - κ)
        kappa=0.5,  # with omega=1 and kappa=0 there is none
        omega_interval=(0.0, 1.0),  # of t, where that guidance acts
        **AVERAGE,
    ),
    "improved_meanflow": dict(  # wants model.time_scale of 100 or less, such as 16
        equal=stage(0.5),  # share of examples with r = t
        velocity="head",  # what the derivative is taken along: head (a second prediction of the network's) | boundary (u(z, t, t))
        omega_max=8.0,  # weights of guidance that are learnt, from 1 on, log-uniform; 1 = none
        guidance=resume(1.5),  # ω that the model is told; 1 = off
        guidance_interval=resume((0.0, 1.0)),  # of t, where guidance acts; holds 0.5
        **AVERAGE,
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

from tinygen.workdir.log_line import log_line

LOSSES = {"loss": 0.18342, "raw_loss": 0.2, "lr": 1e-3, "grad_norm": 1.5}


def test_a_step_without_an_evaluation_has_its_loss_its_rate_and_the_time_left():
    assert log_line(1500, 4000, LOSSES, "28.1 steps/s", 3725.4) == "step 1,500/4,000: loss 0.1834, 28.1 steps/s, 1:02:05 left"


def test_what_is_not_known_is_left_out():
    assert log_line(1, 4000, LOSSES, "", None) == "step 1/4,000: loss 0.1834"
    assert log_line(4000, 4000, LOSSES, "28.1 steps/s", 0.0) == "step 4,000/4,000: loss 0.1834, 28.1 steps/s"


def test_of_held_out_numbers_those_of_the_averaged_weights_that_a_person_reads_are_shown():
    held_out = {"loss": 1.5, "raw_loss": 1.4, "raw_loss_t0": 1.3, "bits_per_byte": 2.284, "perplexity": 4.1}
    values = {**LOSSES, "bits_per_byte": 2.3, "perplexity": 4.2}
    values |= {f"eval_{name}": 9.0 for name in held_out} | {f"eval_ema_{name}": value for name, value in held_out.items()}
    assert log_line(1, 2, values, "", None) == "step 1/2: loss 0.1834, held-out loss 1.5, held-out bits per byte 2.284"


def test_scores_are_shown_by_their_names_without_their_errors():
    scores = {"fd_efflite0": 12.345, "fd_efflite0_stderr": 0.5, "fd_efflite0_infinity": 11.0, "precision_efflite0": 0.75}
    values = {**LOSSES, **{f"eval_ema_{name}": value for name, value in scores.items()}}
    assert log_line(1, 2, values, "", None) == "step 1/2: loss 0.1834, fd_efflite0 12.35, precision_efflite0 0.75"

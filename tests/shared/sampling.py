"""`tinygen sample` by keyword arguments."""

import dataclasses

from tinygen import sample
from tinygen.data.condition import Request
from tinygen.sample import Drawing

FIELDS = {kind: {field.name for field in dataclasses.fields(kind)} for kind in (Request, Drawing)}


def sampled(ckpt, out=None, autoencoder=None, **options):
    """The exit status of `sample.main` with these fields of a request and of how samples are drawn."""
    assert options.keys() <= FIELDS[Request] | FIELDS[Drawing]
    request, drawing = (kind(**{name: options[name] for name in options.keys() & FIELDS[kind]}) for kind in (Request, Drawing))
    return sample.main(str(ckpt), request, drawing, out=None if out is None else str(out), autoencoder=autoencoder)

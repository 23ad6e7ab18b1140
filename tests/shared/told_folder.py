"""A folder of embeddings as the script writes it, of the captioned images of `told`."""

import prepare_text
import pytest
import told

from tinygen import build
from tinygen import config as config_lib
from tinygen.config import schema
from tinygen.pretrained import text_encoder


def make(folder, **data):
    """The folder, with the encoder of `told`; data: keywords of `told.source`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(build.datasets(), "told", lambda: told.source(**data))
        patch.setitem(schema.TABLES["data"], "told", {})
        patch.setattr(text_encoder, "load", told.loading())
        prepare_text.prepare(config_lib.base(data=dict(name="told")), "/encoder", folder, 8, 64, "--config=x")
    return folder

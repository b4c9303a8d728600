"""TensorBoard event files as transformers and `LeashTensorBoardCallback` write them, from a few numbers."""

import json

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.summary.writer.record_writer import RecordWriter


def write_events(file, start, rows, arguments=None):
    """An event file as transformers writes it: arguments as text, then one event per value."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with open(file, "wb") as stream:
        writer = RecordWriter(stream)
        events = [Event(wall_time=start, file_version="brain.Event:2")]
        if arguments is not None:
            text = TensorProto(dtype=7, string_val=[json.dumps(arguments).encode()])
            metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
            value = Summary.Value(tag="args/text_summary", tensor=text, metadata=metadata)
            events.append(Event(wall_time=start, step=0, summary=Summary(value=[value])))
        for step, values in rows.items():
            for tag, number in values.items():
                value = Summary.Value(tag=tag, simple_value=number)
                events.append(Event(wall_time=start + step, step=step, summary=Summary(value=[value])))
        for event in events:
            writer.write(event.SerializeToString())
    return file

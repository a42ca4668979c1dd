"""The ClientApp forwards blobs to the resident process of its site, which has the rows; it sees nothing else."""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from kinfolk.federation.flower import relay
from kinfolk.federation.flower.records import blob_in, content_of

app = ClientApp()


@app.query()
def forward(message: Message, context: Context) -> Message:
    """Bring a blob to the resident process, and its answer back."""
    path = str(context.node_config[relay.SOCKET])
    return Message(content_of(relay.ask(path, blob_in(message.content))), reply_to=message)

"""Every queue, size, deadline and retry of the server, in one place.

Durations end `_S` and are seconds, sizes end `_BYTES`. Documented from here (docs/limits.md); a test walks both.
"""

from __future__ import annotations

from typing import Final

# Requests
BODY_BYTES_MAX: Final = 64 * 1024 * 1024
"""Largest request body that `BODY_MIB` may allow, and its default; 413 beyond."""
BODY_SILENCE_S: Final = 30.0
"""Longest wait for the next piece of a request body; 408 beyond."""
UNREAD_BODY_BYTES_MAX: Final = 64 * 1024
"""A body nobody wants is read off up to this size, so that its connection can be used again; beyond it is closed."""
UNREAD_BODY_S: Final = 0.5
"""Longest wait for such a body."""
BODY_BYTES_ON_LOOP: Final = 256 * 1024
"""Larger bodies are decoded on a thread, so that the event loop goes on meanwhile."""
JSON_DEPTH_MAX: Final = 64
"""Deepest nesting of a request body; 400 beyond."""
IMAGES_FETCHED_MAX: Final = 16
"""Images fetched for one request (`IMAGE_URLS`)."""
IMAGE_BYTES_MAX: Final = 20 * 1024 * 1024
"""Bytes of one fetched image."""
IMAGES_BYTES_MAX: Final = 40 * 1024 * 1024
"""Bytes of all images fetched for one request; written as text they still fit one message to an engine."""
IMAGES_FETCH_S: Final = 20.0
"""Longest wait for all images of a request."""
IMAGE_REDIRECTS_MAX: Final = 3
"""Redirects followed for one image."""
MESSAGES_MAX: Final = 10_000
"""Messages in one conversation."""
STOP_STRINGS_MAX: Final = 16
"""Stop strings in one request (OpenAI documents 4; llama.cpp users send more)."""
STOP_STRING_BYTES_MAX: Final = 1_024
"""Bytes in one stop string."""
CHOICES_MAX: Final = 16
"""Choices (`n`) in one request."""
PROMPTS_MAX: Final = 64
"""Prompts in one completions request; times `n` at most `PROMPT_CHOICES_MAX` answers."""
PROMPT_CHOICES_MAX: Final = 128
"""Answers of one completions request."""
LOGIT_BIAS_MAX: Final = 1_024
"""Entries of one `logit_bias`."""
TOOLS_MAX: Final = 256
"""Tools in one request."""
RESPONSES_STORED_MAX: Final = 1_024
"""Responses a node keeps for `previous_response_id`; the oldest give way."""
RESPONSES_STORED_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of all of them together."""
EMBEDDING_INPUTS_MAX: Final = 2_048
"""Inputs in one embeddings request."""
MODEL_NAME_CHARACTERS_MAX: Final = 256
"""Characters in a model name; longer names are unknown models."""

# The life of one request
ATTEMPTS_MAX: Final = 3
"""Attempts for one choice over its whole life, wherever they run."""
CONNECT_S: Final = 1.0
"""Longest wait for a connection to a peer."""
ACCEPTED_S: Final = 2.0
"""Longest wait for a first word from the node after sending."""
PROGRESS_S: Final = 10.0
"""Longest silence on a stream that was accepted."""
PROGRESS_WHEN_DEAD_S: Final = 2.0
"""The same once the serving member is DEAD in this node's view."""
QUEUE_S: Final = 300.0
"""Longest wait for a lane at the entry node."""
ENTRY_QUEUE_MAX: Final = 1_024
"""Choices waiting at the entry node because every place was busy; beyond it 503 at once."""
VECTORS_S: Final = 3_600.0
"""Longest wait for vectors or ranks at all places together, however much they move on; 504 beyond."""
FAILOVER_WAIT_S: Final = 10.0
"""Longest wait for a place to go on after an attempt broke and none is left."""
STREAM_BUFFER_MESSAGES: Final = 256
"""Engine messages buffered between a producer and a slow reader before the producer waits."""
KEEPALIVE_COMMENT_S: Final = 15.0
"""Silence on a client's event stream before a comment is sent."""
CLIENT_STALL_S: Final = 60.0
"""How long a client may need for 64 KiB sent to it before its connection is closed and its lane given to others."""

# Engine
ENGINE_QUEUE_MAX: Final = 256
"""Requests waiting for a lane in one engine; beyond it `refused{busy}` at once."""
ENGINE_MESSAGE_BYTES_MAX: Final = 64 * 1024 * 1024
"""One message on the engine's socket."""
HEARTBEAT_S: Final = 1.0
"""An idle engine reports at least this often; a busy one after its steps, every tenth of a second at most."""
HEARTBEAT_LOST_S: Final = 60.0
"""Silence after which an engine process counts as hung and is killed (a step may be long on a slow machine)."""
ENGINE_STEP_S: Final = 20.0
"""Longest silence of an engine process that may still be one long step; its requests count as alive so long."""
ENGINE_RESTART_FIRST_S: Final = 0.5
"""Wait before the first restart of a crashed engine; doubles each time."""
ENGINE_RESTART_MAX_S: Final = 60.0
"""Longest wait between restarts."""

# Models loaded while the node runs
LOAD_WAIT_S: Final = 300.0
"""Longest wait of a request for a model that is being loaded."""
LOAD_WAITERS_MAX: Final = 256
"""Requests that wait for one model to be loaded; beyond it 503 with the time it will take."""
LOAD_RETRY_S: Final = 5.0
"""`Retry-After` when nothing tells how long a load takes."""
LOAD_ROOM_S: Final = 30.0
"""Longest wait for busy models to end, so that another fits into the memory budget."""
LOAD_BACKOFF_FIRST_S: Final = 15.0
"""How long a model that could not be loaded is not tried again; doubles each time."""
LOAD_BACKOFF_MAX_S: Final = 300.0
"""Longest such pause."""

# Peers
PEER_CONNECTIONS_MAX: Final = 256
"""Connections to one peer."""
PEER_CONNECTIONS_IDLE_MAX: Final = 32
"""Connections to one peer kept open for later."""
PEER_IDLE_S: Final = 20.0
"""How long an unused connection to a peer is kept."""
PEER_REQUESTS_MAX: Final = 1_024
"""Requests of other nodes served at once; beyond it 503."""
PEER_SWIM_MAX: Final = 256
"""Membership messages taken at once over the node's port; their senders are not known before they are read."""
PEER_SWIM_BODY_BYTES_MAX: Final = 1024 * 1024
"""One membership exchange, either way: the state of some 1,400 of the largest members; of more only a part."""
PEER_SWIM_LONG_BYTES: Final = 65_536
"""A membership message from here on is a long one."""
PEER_SWIM_LONG_MAX: Final = 16
"""Long membership messages taken at once, before it is known who sent them; beyond it 413."""
PEER_INSTANCES_MAX: Final = 4_096
"""Processes whose request counters are remembered against replay."""
PEER_FRAME_BYTES_MAX: Final = 4 * 1024 * 1024
"""One frame between nodes."""
SUSPECT_FINGERPRINTS_MAX: Final = 1_024
"""Fingerprints of requests that crashed engines, kept in quarantine."""
QUARANTINE_S: Final = 3_600.0
"""How long a fingerprint that crashed two engines is refused."""

# Routing and the fleet's view
METADATA_BYTES_MAX: Final = 512
"""What a node says of itself in membership packets; what does not fit is fetched whole."""
VITALS_BYTES_MAX: Final = 128
"""A node's load in membership packets."""
FACTS_BYTES_MAX: Final = 1024 * 1024
"""A node's facts, whole, as fetched from it."""
PREFIX_MARKS_FIRST: Final = 32
"""Marks kept from the head of a long conversation: they place it."""
PREFIX_MARKS_LAST: Final = 96
"""Marks kept from its tail: they find its last turn."""
HELD_MARKS_MAX: Final = 65_536
"""Prefix marks whose holders an entry node remembers; the least recently noted go first."""
HELD_HOLDERS_MAX: Final = 8
"""Holders remembered for one mark."""
HELD_S: Final = 900.0
"""How long a holder is believed without news."""
VITALS_STALE_S: Final = 5.0
"""Age of a load report from which its node goes one band down."""
LOOP_LAG_S: Final = 1.0
"""Lag of a node's event loop from which it goes one band down."""
HOLDER_DOWN_S: Final = 600.0
"""How long the models of a dead member answer 503 rather than 404."""
HOLDER_LEFT_S: Final = 60.0
"""The same for a member that left."""
ROUTE_RETRY_AFTER_S: Final = 5.0
"""`Retry-After` of a refusal by routing."""
ROUTES_MAX: Final = 1_024
"""Configured routes."""
DRAFT_ROUNDS_MAX: Final = 8
"""How often one strategy may let a held draft run on before it must decide."""

# Upstream targets
UPSTREAM_CONNECT_S: Final = 5.0
"""Longest wait for a connection to an upstream target."""
UPSTREAM_FIRST_S: Final = 600.0
"""Longest wait for an upstream's first word, and for the whole of an answer that is not streamed."""
UPSTREAM_SILENCE_S: Final = 120.0
"""Longest silence in an upstream's stream once it has begun."""
UPSTREAM_EVENT_BYTES_MAX: Final = 8 * 1024 * 1024
"""One event of an upstream's stream."""
UPSTREAM_BODY_BYTES_MAX: Final = 64 * 1024 * 1024
"""A whole answer of an upstream."""
UPSTREAM_ERROR_BYTES_MAX: Final = 64 * 1024
"""What is read of an upstream's error."""
UPSTREAM_CALLS_MAX: Final = 128
"""Tool calls in one answer of an upstream."""
UPSTREAM_FAULTS_MAX: Final = 3
"""Faults of an upstream in a row after which it rests."""
UPSTREAM_REST_S: Final = 5.0
"""How long it rests; other candidates are asked meanwhile."""
DRAFT_S: Final = 20.0
"""Longest wait for a held draft before the answer goes on without it."""

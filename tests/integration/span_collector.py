"""A collector of traces on loopback, which reads with OpenTelemetry's own messages."""

import concurrent.futures
import threading

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc


def value_of(attribute):
    value = attribute.value
    return getattr(value, value.WhichOneof("value"))


def attributes_of(whole):
    """The attributes of a span or of a resource, by their names."""
    found = {attribute.key: value_of(attribute) for attribute in whole.attributes}
    assert len(found) == len(whole.attributes)
    return found


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Keeps the spans that are sent to it.

    Args:
      port: 0: a free one.
      credentials: grpc.ServerCredentials for TLS; None: plaintext.
      answer: called with each request and its context in place of taking the spans; None: takes them.
    """

    def __init__(self, port=0, credentials=None, answer=None):
        self._answer, self._lock = answer, threading.Lock()
        self._spans, self._resources, self._calls = [], [], 0
        self._server = grpc.server(
            concurrent.futures.ThreadPoolExecutor(4), options=[("grpc.so_reuseport", 0)]
        )
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(self, self._server)
        address = f"127.0.0.1:{port}"
        if credentials is None:
            self.port = self._server.add_insecure_port(address)
        else:
            self.port = self._server.add_secure_port(address, credentials)
        self._server.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._server.stop(0).wait()

    @property
    def flag(self):
        return f"--otlp_endpoint=localhost:{self.port}"

    @property
    def spans(self):
        with self._lock:
            return list(self._spans)

    @property
    def resources(self):
        with self._lock:
            return list(self._resources)

    @property
    def calls(self):
        """How often it was called, whatever it answered."""
        with self._lock:
            return self._calls

    def take(self, request):
        with self._lock:
            for group in request.resource_spans:
                self._resources.append(group.resource)
                for scope in group.scope_spans:
                    self._spans.extend(scope.spans)
        return trace_service_pb2.ExportTraceServiceResponse()

    def Export(self, request, context):
        with self._lock:
            self._calls += 1
        return self.take(request) if self._answer is None else self._answer(self, request, context)

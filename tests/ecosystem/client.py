"""Calls a host as any gRPC client would: python's grpcio, without generated code."""

import json
import sys

import grpc

SERVICE = "/greeter.Greeter/"


def encode(name):
    data = name.encode()
    return b"\x0a" + bytes([len(data)]) + data


def decode(message):
    return message[2 : 2 + message[1]].decode()


def say(step, **what):
    print(json.dumps({"step": step, **what}), flush=True)


def failed(error):
    details = dict(error.trailing_metadata() or ()).get("grpc-status-details-bin", b"")
    return {
        "code": error.code().name,
        "details": error.details(),
        "retry_info": b"type.googleapis.com/google.rpc.RetryInfo" in details,
    }


def main(address):
    channel = grpc.insecure_channel(address)
    hello = channel.unary_unary(SERVICE + "Hello", encode, decode)
    spell = channel.unary_stream(SERVICE + "Spell", encode, decode)
    meet = channel.stream_unary(SERVICE + "Meet", encode, decode)
    chat = channel.stream_stream(SERVICE + "Chat", encode, decode)

    def of(tenant, timeout=20):
        return {"metadata": (("x-tenant", tenant),), "timeout": timeout}

    say("hello b", got=hello("Bob", **of("b")))
    say("hello a", got=hello("Ada", **of("a")))

    # A stream of a's takes the only room there is.
    stream = spell("ab", **of("a"))
    say("spell a", got=next(stream))
    try:
        say("full", got=hello("Bob", **of("b")))
    except grpc.RpcError as error:
        say("full", **failed(error))
    stream.cancel()

    # It is given up, and b has the room.
    say("hello b again", got=hello("Bob", **of("b")))
    say("meet", got=meet(iter(["Ada", "Bob"]), **of("b")))
    say("chat", got=list(chat(iter(["Ada", "Bob", "Cyd"]), **of("b"))))
    try:
        say("own error", got=hello("", **of("b")))
    except grpc.RpcError as error:
        say("own error", **failed(error))
    try:
        say("unknown", got=hello("Eve", **of("nobody")))
    except grpc.RpcError as error:
        say("unknown", **failed(error))

    # One that never starts, and a caller who does not wait for ever.
    try:
        say("slow", got=hello("Sloth", **of("slow", timeout=0.5)))
    except grpc.RpcError as error:
        say("slow", **failed(error))


main(sys.argv[1])

//! What users keep in structs, clone for each connection and share between threads: `Clone`, `Send` and
//! `Sync`, checked when this compiles. (`tests/types.rs` has the layers' own.)

use std::convert::Infallible;

use axum::body::Body;
use http::{Request, Response};
use tonic::transport::Channel;
use tower::{Service, util::BoxCloneSyncService};
use tower_on_demand::{
    Backend, CoalesceLayer, DropToStop, Error, Identity, KeepLayer, Keyed, KeyedLayer, LazyStart,
    Leased, Runtime,
    coalesce::{Coalesce, CoalesceHandle},
    grpc, http as edge,
    keep::Kept,
    lazy_start::Lent,
    process,
};

use crate::greeter::greeter_client::GreeterClient;

type Call = Request<Body>;
type Answer = Response<Body>;
/// Bodies are not `Sync`, and nobody expects them to be.
type Inner = BoxCloneSyncService<Call, Answer, Error>;
type Lease = Leased<Inner, edge::UntilBodyEnd>;
type Stack = LazyStart<String, Lease>;
type Pairs = BoxCloneSyncService<u32, u32, Error>;
type ByNumber = fn(&u32) -> Option<u32>;
type Tenant = fn(&Call) -> Option<String>;

fn shared<T: Clone + Send + Sync + 'static>() {}
fn owned<T: Send + Sync + 'static>() {}
fn sent<T: Send + 'static>() {}
fn backend<T: Backend>() {}
fn keyed<I: Identity<Call>>() {}

/// What axum wants of a fallback service.
fn routed<T>()
where
    T: Service<Call, Error = Infallible> + Clone + Send + Sync + 'static,
    T::Future: Send + 'static,
{
}

#[test]
fn what_users_expect_to_be_clone_and_send_and_sync_is() {
    keyed::<Tenant>();
    shared::<Keyed<String, Lease, Tenant>>();
    shared::<KeyedLayer<String, String, Tenant>>();
    shared::<KeepLayer>();
    shared::<Kept<Lease>>();
    sent::<Lent<Lease>>();

    shared::<CoalesceLayer<ByNumber, u32, Pairs>>();
    shared::<Coalesce<Pairs, ByNumber, u32>>();
    shared::<CoalesceHandle<u32>>();
    sent::<<Coalesce<Pairs, ByNumber, u32> as Service<u32>>::Future>();

    shared::<edge::StatusLayer<Call>>();
    shared::<edge::Status<Stack, Call>>();
    routed::<edge::Status<Stack, Call>>();
    routed::<grpc::Status<Stack, Call>>();
    shared::<edge::UntilBodyEnd>();
    shared::<edge::UntilBothEnd>();
    shared::<edge::UnlessSilent<edge::UntilBodyEnd>>();
    shared::<edge::InUse>();
    sent::<edge::InUseBody<Body>>();

    shared::<process::Command>();
    shared::<process::Spawn>();
    shared::<process::Http>();
    shared::<process::Process>();
    owned::<process::Client>();
    sent::<process::Starting>();

    shared::<grpc::Connect>();
    sent::<grpc::Connecting>();
    shared::<grpc::StatusLayer>();
    shared::<grpc::Stack>();
    shared::<grpc::Stack<process::Command, process::Client>>();
    shared::<GreeterClient<grpc::Stack>>();
    sent::<grpc::StatusBody<edge::InUseBody<tonic::body::Body>>>();

    backend::<Channel>();
    backend::<process::Client>();
    backend::<DropToStop<Inner>>();
    backend::<
        hyper_util::client::legacy::Client<
            hyper_util::client::legacy::connect::HttpConnector,
            http_body_util::Empty<bytes::Bytes>,
        >,
    >();
    shared::<Runtime>();
}

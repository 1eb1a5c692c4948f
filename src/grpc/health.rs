//! The gRPC health service, as a probe.

use std::sync::Arc;

use tonic::{
    Code,
    transport::{Channel, Endpoint},
};
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};
use tower::service_fn;

use crate::{
    error::BoxError,
    process::{Address, Probe},
};

/// Whether a child's gRPC health service (`grpc.health.v1.Health`) says that `service` is serving.
///
/// The empty name asks for the server as a whole. For
/// [`Command::ready`](crate::process::Command::ready) and [`Command::alive`](crate::process::Command::alive); each
/// question goes over a connection of its own. The server offers the service with `tonic-health`, or what its
/// language has for it.
///
/// ```
/// use std::time::Duration;
/// use tower_on_demand::{grpc, process::{Command, Listen}};
///
/// let greeter = Command::new("greeter", "greeter-server")
///     .args(["--listen", "{socket}"])
///     .listen(Listen::unix())
///     .ready(grpc::health("helloworld.Greeter"))
///     .alive(grpc::health(""), Duration::from_secs(10), 3);
/// greeter.validate().unwrap();
/// ```
pub fn health(service: impl Into<Arc<str>>) -> Probe {
    let service = service.into();
    let name = format!("health of {service:?}");
    Probe::custom(name, move |address| ask(address, service.clone()))
}

async fn ask(address: Address, service: Arc<str>) -> Result<(), BoxError> {
    let request = HealthCheckRequest {
        service: service.to_string(),
    };
    let mut client = HealthClient::new(connect(address).await?);
    let answer = client.check(request).await.map_err(|status| {
        let told = match status.code() {
            Code::Unimplemented => "the server has no health service".to_owned(),
            Code::NotFound => format!("the health service knows no {service:?}"),
            code => format!("the health service failed: {code:?}, {}", status.message()),
        };
        BoxError::from(told)
    })?;
    match answer.into_inner().status() {
        ServingStatus::Serving => Ok(()),
        other => {
            let other = other.as_str_name();
            Err(format!("the health service says {other} of {service:?}").into())
        }
    }
}

async fn connect(address: Address) -> Result<Channel, BoxError> {
    let connector = service_fn(move |_| {
        let address = address.clone();
        Box::pin(async move { address.connect().await })
    });
    let endpoint = Endpoint::from_static("http://localhost");
    Ok(endpoint.connect_with_connector(connector).await?)
}

//! `Work`: one call of the inner service, from its own clone becoming ready to the response.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use pin_project::pin_project;
use tower_service::Service;

/// Readies a service, calls it, awaits the response.
#[pin_project(project = WorkProj, project_replace = WorkOwn)]
pub(crate) enum Work<S, Req>
where
    S: Service<Req>,
{
    Seed {
        service: S,
        request: Req,
    },
    Called {
        #[pin]
        future: S::Future,
    },
    /// It is elsewhere, or it panicked.
    Empty,
}

impl<S, Req> Work<S, Req>
where
    S: Service<Req>,
{
    /// Takes out what has not been begun yet.
    pub(crate) fn take_seed(mut self: Pin<&mut Self>) -> Option<(S, Req)> {
        match self.as_mut().project() {
            WorkProj::Seed { .. } => match self.project_replace(Work::Empty) {
                WorkOwn::Seed { service, request } => Some((service, request)),
                WorkOwn::Called { .. } | WorkOwn::Empty => None,
            },
            WorkProj::Called { .. } | WorkProj::Empty => None,
        }
    }
}

impl<S, Req> Future for Work<S, Req>
where
    S: Service<Req>,
{
    type Output = Result<S::Response, S::Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            match self.as_mut().project() {
                WorkProj::Seed { service, .. } => {
                    ready!(service.poll_ready(cx))?;
                    if let Some((mut service, request)) = self.as_mut().take_seed() {
                        let future = service.call(request);
                        self.set(Work::Called { future });
                    }
                }
                WorkProj::Called { future } => return future.poll(cx),
                WorkProj::Empty => panic!("polled after it had panicked"),
            }
        }
    }
}

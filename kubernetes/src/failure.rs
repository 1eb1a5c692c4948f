//! `Failure`: why a workload does not become ready, as far as the cluster says so.

use std::{error::Error as StdError, fmt, time::Duration};

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::core::DynamicObject;
use serde::Deserialize;
use tower_on_demand::{Error, ErrorKind, NoRoom};

/// Why a workload could not be started: the cause of the [`Error`] that a [`Scale`](crate::Scale)
/// answers with.
///
/// Told as soon as the cluster says it, not when a timeout is over. What is a lack of room
/// ([`is_no_room`](Self::is_no_room)) comes as [`ErrorKind::NoRoom`], a refusal, which starts no backoff;
/// the rest as [`ErrorKind::StartFailed`].
///
/// ```
/// use std::error::Error as _;
/// use tower_on_demand_kubernetes::Failure;
///
/// fn is_a_bad_image(error: &tower_on_demand::Error) -> bool {
///     let cause = error.source().and_then(|cause| cause.downcast_ref());
///     matches!(cause, Some(Failure::Image { .. }))
/// }
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum Failure {
    /// An image cannot be pulled: `ImagePullBackOff`, `InvalidImageName`, `ErrImageNeverPull`.
    #[non_exhaustive]
    Image {
        /// The pod.
        pod: String,
        /// The kubelet's word for it.
        reason: String,
        /// What the kubelet says.
        message: String,
    },
    /// A container ends again and again: `CrashLoopBackOff`.
    #[non_exhaustive]
    CrashLoop {
        /// The pod.
        pod: String,
        /// How the container ended last, and the kubelet's message.
        message: String,
    },
    /// A container cannot be made: `CreateContainerConfigError`, for one: a Secret that is not there.
    #[non_exhaustive]
    Config {
        /// The pod.
        pod: String,
        /// The kubelet's word for it.
        reason: String,
        /// What the kubelet says.
        message: String,
    },
    /// No node has room for a pod: `Unschedulable: … Insufficient …`.
    #[non_exhaustive]
    Unschedulable {
        /// The pod.
        pod: String,
        /// What the scheduler says.
        message: String,
    },
    /// The namespace's quota does not allow the pods.
    #[non_exhaustive]
    Quota {
        /// What the API server said.
        message: String,
    },
    /// Pods cannot be made for another reason: an admission webhook, a missing service account.
    #[non_exhaustive]
    Forbidden {
        /// What the API server said.
        message: String,
    },
    /// The Deployment made no progress in its own deadline: `ProgressDeadlineExceeded`.
    #[non_exhaustive]
    ProgressDeadline {
        /// What the Deployment's condition says.
        message: String,
    },
    /// There is no such workload.
    Missing,
    /// Somebody else scaled it to zero while it was starting.
    ScaledToZero,
    /// The API server refused a call, or cannot be reached.
    Api(kube::Error),
}

impl Failure {
    /// Whether it is a lack of room, in the cluster or in the namespace's quota: nothing is wrong with the
    /// workload, and it can be started once others have stopped.
    pub fn is_no_room(&self) -> bool {
        match self {
            Failure::Quota { .. } => true,
            Failure::Unschedulable { message, .. } => message.contains("Insufficient"),
            _ => false,
        }
    }

    /// As the core's error.
    pub(crate) fn into_error(self) -> Error {
        let kind = match self.is_no_room() {
            true => ErrorKind::NoRoom(NoRoom::default()),
            false => ErrorKind::StartFailed,
        };
        let error = Error::new(kind);
        let error = match self.is_no_room() {
            true => error.after(TRY_AGAIN),
            false => error,
        };
        error.because(self)
    }
}

/// When room may have come back: nobody tells, and pods take about so long to end.
const TRY_AGAIN: Duration = Duration::from_secs(30);

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Image {
                pod,
                reason,
                message,
            }
            | Failure::Config {
                pod,
                reason,
                message,
            } => write!(f, "pod {pod}: {reason}: {message}"),
            Failure::CrashLoop { pod, message } => {
                write!(f, "pod {pod}: CrashLoopBackOff: {message}")
            }
            Failure::Unschedulable { pod, message } => {
                write!(f, "pod {pod}: Unschedulable: {message}")
            }
            Failure::Quota { message } => write!(f, "quota: {message}"),
            Failure::Forbidden { message } => write!(f, "pods cannot be made: {message}"),
            Failure::ProgressDeadline { message } => {
                write!(f, "ProgressDeadlineExceeded: {message}")
            }
            Failure::Missing => f.write_str("there is no such workload"),
            Failure::ScaledToZero => f.write_str("somebody else scaled it to zero"),
            Failure::Api(error) => write!(f, "the API server: {error}"),
        }
    }
}

impl StdError for Failure {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Failure::Api(error) => Some(error),
            _ => None,
        }
    }
}

/// What a pod says of itself.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// Nothing, or nothing yet.
    GoesOn,
    /// It cannot be placed now; whether it is given up is a matter of time.
    Waits(Failure),
    Fails(Failure),
}

/// What `pod` says of itself.
pub(crate) fn of_pod(pod: &Pod) -> Verdict {
    let name = pod.metadata.name.clone().unwrap_or_default();
    let Some(status) = &pod.status else {
        return Verdict::GoesOn;
    };
    let init = status.init_container_statuses.iter().flatten();
    for container in init.chain(status.container_statuses.iter().flatten()) {
        if let Some(failure) = of_container(&name, container) {
            return Verdict::Fails(failure);
        }
    }
    let unschedulable = status.conditions.iter().flatten().find(|condition| {
        condition.type_ == "PodScheduled"
            && condition.status == "False"
            && condition.reason.as_deref() == Some("Unschedulable")
    });
    match unschedulable {
        Some(condition) => Verdict::Waits(Failure::Unschedulable {
            pod: name,
            message: condition.message.clone().unwrap_or_default(),
        }),
        None => Verdict::GoesOn,
    }
}

fn of_container(pod: &str, container: &ContainerStatus) -> Option<Failure> {
    let waiting = container.state.as_ref()?.waiting.as_ref()?;
    let reason = waiting.reason.clone()?;
    let message = waiting.message.clone().unwrap_or_default();
    let pod = pod.to_owned();
    match &*reason {
        // `ErrImagePull` is the first failure; the kubelet tries again, and then calls it so.
        "ImagePullBackOff" | "InvalidImageName" | "ErrImageNeverPull" => Some(Failure::Image {
            pod,
            reason,
            message,
        }),
        "CrashLoopBackOff" => {
            let last = container.last_state.as_ref();
            let ended = last.and_then(|last| last.terminated.as_ref());
            let message = match ended {
                Some(ended) => format!(
                    "ended {} times, the last with exit code {}; {message}",
                    container.restart_count, ended.exit_code
                ),
                None => message,
            };
            Some(Failure::CrashLoop { pod, message })
        }
        "CreateContainerConfigError" | "CreateContainerError" | "RunContainerError" => {
            Some(Failure::Config {
                pod,
                reason,
                message,
            })
        }
        _ => None,
    }
}

/// What of a scaled object's status we look at.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    observed_generation: Option<i64>,
    #[serde(default)]
    conditions: Vec<Condition>,
}

#[derive(Debug, Deserialize)]
struct Condition {
    #[serde(rename = "type")]
    type_: String,
    status: String,
    reason: Option<String>,
    message: Option<String>,
}

/// What the scaled object says of itself as it is now.
pub(crate) fn of_object(object: &DynamicObject) -> Option<Failure> {
    let status = Status::deserialize(object.data.get("status")?).ok()?;
    // Its controller has not seen yet what it was scaled to: these conditions are older than that.
    if status.observed_generation < object.metadata.generation {
        return None;
    }
    for condition in status.conditions {
        let message = condition.message.unwrap_or_default();
        let reason = condition.reason.unwrap_or_default();
        match (&*condition.type_, &*condition.status) {
            ("ReplicaFailure", "True") if message.contains("exceeded quota") => {
                return Some(Failure::Quota { message });
            }
            ("ReplicaFailure", "True") if reason == "FailedCreate" => {
                return Some(Failure::Forbidden { message });
            }
            ("Progressing", "False") if reason == "ProgressDeadlineExceeded" => {
                return Some(Failure::ProgressDeadline { message });
            }
            _ => {}
        }
    }
    None
}

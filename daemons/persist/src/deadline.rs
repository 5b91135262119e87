//! No call waits longer for a daemon than it was given.

use std::time::Duration;

use tonic::Status;

/// The answer of a call.
///
/// Errors: its own, or DEADLINE_EXCEEDED; the call is dropped then.
pub async fn within<T>(
    deadline: Duration,
    call: impl Future<Output = Result<T, Status>>,
) -> Result<T, Status> {
    let answer = tokio::time::timeout(deadline, call).await;
    answer.unwrap_or_else(|_| Err(Status::deadline_exceeded("no answer in time")))
}

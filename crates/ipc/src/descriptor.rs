//! Handing a file descriptor to another process.

use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use tokio::{io::Interest, net::UnixStream};

/// Descriptors travel with a byte of data; this one.
const MARK: u8 = b'F';

/// Sends `descriptor` (SCM_RIGHTS) and one byte, which [`receive_descriptor`] takes. Cancel-safe: sent
/// or not, never half.
///
/// Errors: the peer is gone.
pub async fn send_descriptor(stream: &UnixStream, descriptor: BorrowedFd<'_>) -> io::Result<()> {
    let send = || send_with_descriptor(stream, &[MARK], descriptor);
    stream.async_io(Interest::WRITABLE, send).await
}

/// Sends `bytes` and `descriptor` (SCM_RIGHTS) in one message.
///
/// Errors: the peer is gone, or the socket takes nothing now.
pub fn send_with_descriptor(
    socket: impl AsFd,
    bytes: &[u8],
    descriptor: BorrowedFd<'_>,
) -> io::Result<()> {
    let descriptors = [descriptor];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(io::Error::other("no room for one descriptor"));
    }
    let bytes = [IoSlice::new(bytes)];
    sendmsg(socket, &bytes, &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives what [`send_with_descriptor`] sent: how many bytes came into `buffer`, and the descriptor if
/// there was one. What does not fit is lost.
///
/// Errors: nothing has come and the socket does not wait.
pub fn receive_with_descriptor(
    socket: impl AsFd,
    buffer: &mut [u8],
) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let mut into = [IoSliceMut::new(buffer)];
    let bytes = recvmsg(socket, &mut into, &mut ancillary, flags)?.bytes;
    // The space is for one; the kernel closes what is more.
    let descriptor = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut received) => received.next(),
        _ => None,
    });
    Ok((bytes, descriptor))
}

/// Receives what [`send_descriptor`] sent. Cancel-safe.
///
/// Errors: `UnexpectedEof` when the peer closed instead; `InvalidData` when it sent something else,
/// whose descriptors are closed.
pub async fn receive_descriptor(stream: &UnixStream) -> io::Result<OwnedFd> {
    let receive = || {
        let mut mark = [0];
        match (receive_with_descriptor(stream, &mut mark)?, mark) {
            ((0, _), _) => Err(io::ErrorKind::UnexpectedEof.into()),
            ((_, Some(descriptor)), [MARK]) => Ok(descriptor),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    };
    stream.async_io(Interest::READABLE, receive).await
}

#[cfg(test)]
mod tests {
    use std::{
        fs::File,
        io::{Read, Seek, Write},
    };

    use tokio::io::AsyncWriteExt;

    use super::*;

    #[tokio::test]
    async fn a_descriptor_arrives_as_the_same_file() {
        let (here, there) = UnixStream::pair().unwrap();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"shared").unwrap();
        let (sent, received) = tokio::join!(
            send_descriptor(&here, file.as_fd()),
            receive_descriptor(&there)
        );
        sent.unwrap();
        let mut received = File::from(received.unwrap());
        received.rewind().unwrap();
        let mut text = String::new();
        received.read_to_string(&mut text).unwrap();
        assert_eq!(text, "shared");
    }

    #[tokio::test]
    async fn what_is_no_descriptor_is_refused() {
        let (mut here, there) = UnixStream::pair().unwrap();
        here.write_all(&[MARK]).await.unwrap();
        let refused = receive_descriptor(&there).await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
        drop(here);
        let closed = receive_descriptor(&there).await.unwrap_err();
        assert_eq!(closed.kind(), io::ErrorKind::UnexpectedEof);
        assert!(
            send_descriptor(&there, std::io::stderr().as_fd())
                .await
                .is_err()
        );
    }
}

//! How the daemons of the house reach each other: gRPC over Unix sockets that only their own user
//! can open, or the house's group where root set it up so, at places every process derives alike.

mod connect;
mod descriptor;
mod dirs;
mod file_lock;
mod inherited;
mod listener;
mod process;
mod trust;

pub use connect::{connect, connect_stream};
pub use descriptor::{
    receive_descriptor, receive_with_descriptor, send_descriptor, send_with_descriptor,
};
pub use dirs::{BaseDirs, DirsError, HouseDirs, create_private_dir};
pub use file_lock::FileLock;
pub use inherited::{Inherited, bequeath};
pub use listener::{BindError, Incoming, Listener};
pub use process::{Process, is_gone};

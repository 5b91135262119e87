//! How the daemons of the house reach each other: gRPC over Unix sockets that only their own user
//! can open, or the house's group where root set it up so, at places every process derives alike.

mod connect;
mod dirs;
mod listener;
mod trust;

pub use connect::connect;
pub use dirs::{BaseDirs, DirsError, HouseDirs, create_private_dir};
pub use listener::{BindError, Incoming, Listener};

//! The profile: every setting of the house, typed, checked once and handed down.
//!
//! A value comes from a flag, else from the profile file, else from the default, and
//! [`Profile::origin`] tells which. A key the schema does not know is an error that names the
//! nearest one it does. Profiles do not inherit: one file says all it changes.

pub mod budget;
pub mod catalog;
mod change;
mod document;
mod error;
mod load;
mod model_reference;
mod reference;
mod runnable;
mod schema;
mod setting;

pub use change::Change;
pub use error::{ProfileError, ValueError};
pub use load::{Entry, Origin, Overrides, Plain, Profile};
pub use model_reference::{ModelFile, ModelReference, ModelReferenceError, try_reading};
pub use reference::{FieldReference, reference, reference_markdown};
pub use runnable::{check_loopback, is_loopback};
pub use schema::{Demiurge, Engine, House, KvTier, Persist, Shield, Tenant};
pub use setting::{Isa, LogFormat, ProcessNames, Repack, Share, Speculation};

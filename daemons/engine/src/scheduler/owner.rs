use std::sync::Arc;

/// Whose a sequence is, at one level of sharing. A name of one kind is never one of another.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Owner {
    /// X-Tenant-Id.
    Tenant(Arc<str>),
    /// X-Session-Id.
    Session(Arc<str>),
    /// A request that named neither, by its sequence's number.
    Request(u64),
}

/// What is urgent comes first; of the rest a floor is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    #[default]
    Interactive,
    Background,
}

/// Whose a sequence is and how urgent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ownership {
    /// Shares with other tenants.
    pub tenant: Owner,
    /// Shares with the tenant's other sessions.
    pub session: Owner,
    pub priority: Priority,
}

impl Ownership {
    /// `tenant`, `session`: as the client named them, empty when it did not. Who names no tenant is
    /// one by its session, and by its request when it has none either.
    pub fn new(tenant: &str, session: &str, request: u64, priority: Priority) -> Self {
        let session = match session {
            "" => Owner::Request(request),
            name => Owner::Session(name.into()),
        };
        Self {
            tenant: match tenant {
                "" => session.clone(),
                name => Owner::Tenant(name.into()),
            },
            session,
            priority,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_names_no_tenant_is_one_by_session_or_request() {
        let of = |tenant, session| Ownership::new(tenant, session, 7, Priority::Interactive);
        assert_eq!(of("t", "s").tenant, Owner::Tenant("t".into()));
        assert_eq!(of("t", "s").session, Owner::Session("s".into()));
        assert_eq!(of("", "s").tenant, Owner::Session("s".into()));
        assert_eq!(of("", "").tenant, Owner::Request(7));
        assert_ne!(of("a", "").tenant, of("", "a").tenant, "names of two kinds");
    }
}

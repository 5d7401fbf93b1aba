//! The NBD server, as a client meets it.
//! One program: to link each file alone takes longer than to run most of them.

mod support;

mod hostile;
mod negotiation;
mod requests;

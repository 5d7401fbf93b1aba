//! Tests of the NBD server through a client.
//! One program, because linking each file alone takes longer than running most of them.

mod support;

mod hostile;
mod negotiation;
mod requests;

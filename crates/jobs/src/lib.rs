//! What each command does, from its sources to its offering.

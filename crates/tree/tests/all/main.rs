//! Tests of trees: scanning, building, storing, comparing and filtering.
//! One program, because linking each file alone takes longer than running most of them.

mod support;

mod differences_are_named_by_path;
mod filters_choose_what_is_taken;
mod layers_go_over_other_states_of_a_tree;
mod mounts_below_are_not_crossed;
mod owner_maps_change_every_owner;
mod scan_is_the_same_with_any_number_of_threads;
mod scan_sees_every_odd_node;
mod scan_survives_a_changing_tree;
mod selecting_is_the_same_as_scanning_less;
mod sparse_files_keep_their_holes;
mod stored_trees_come_back;
mod tree_gives_back_what_was_built;
mod unreadable_files_are_reported;

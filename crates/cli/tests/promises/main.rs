//! What the README promises, through the built command: a module a promise. One program, as linking each alone takes longer than
//! running most of them. Its tests run one at a time: guests share the processors.

mod support;

mod a_changed_file_is_an_error_and_is_named;
mod a_container_image_runs_as_it_says;
mod a_directory_is_shared_by_9p;
mod a_kept_overlay_belongs_to_its_tree;
mod a_kept_run_goes_on_where_it_stopped;
mod a_kernel_unpacks_our_cpio;
mod a_killed_run_loses_nothing_that_was_flushed;
mod a_mount_goes_on_in_the_background;
mod a_mounted_tree_is_like_the_tree;
mod a_mounts_names_are_known_before_they_are_asked_for;
mod a_run_is_like_the_command_itself;
mod accesses_are_recorded;
mod an_interrupted_image_leaves_nothing;
mod any_machine_has_the_disk;
mod apply_brings_every_kind_of_file;
mod apply_is_atomic_and_resumable;
mod bad_input_gets_one_line;
mod bad_output_gets_one_line;
mod every_source_gives_the_same_tree;
mod every_source_makes_every_format;
mod guests_leave_no_power_on_the_host;
mod guests_that_fail_are_explained;
mod heavy_writes_leave_a_clean_file_system;
mod hostile_archives_stay_inside;
mod images_are_the_same_every_time;
mod images_share_blocks_with_their_source;
mod locks_are_seen_by_everybody;
mod nbd_clients_read_and_write_the_disk;
mod nothing_is_left_behind;
mod owners_are_mapped_both_ways;
mod programs_work_in_mounts;
mod real_projects_pass_and_fail_as_they_should;
mod roots_of_every_kind;
mod servers_are_confined;
mod shared_directories_are_live;
mod sources_are_what_they_say;
mod the_disk_is_a_file_for_any_program;
mod the_guest_sees_the_tree_as_it_is;
mod trees_go_by_the_way_that_is_there;
mod users_of_a_mount_stay_apart;
mod what_a_guest_changed_is_listed;
mod what_an_image_lacks_is_said;
mod what_is_written_over_a_share_leaves_it_as_it_is;

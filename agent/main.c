/*
 * PID 1 of a guest.
 *
 * 1. Load the modules of the initramfs, the port's driver first; open the port; send HELLO.
 * 2. Receive the description of the session, until RUN.
 * 3. Set the clock, start the other processors, mount the file systems, set up network and host name; start the
 *    command.
 * 4. Relay streams and signals until the command has ended and the host has sent BYE.
 * 5. Unmount if asked to; power off.
 *
 * `agent --session FD` does the same over a socket in an ordinary process, without step 1 and without mounts,
 * network, clock and host name: for tests, and for a host that runs commands without a machine.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

#include "channel.h"
#include "circumstances.h"
#include "clock.h"
#include "command.h"
#include "disks.h"
#include "modules.h"
#include "mounts.h"
#include "network.h"
#include "observe.h"
#include "port.h"
#include "power.h"
#include "processors.h"
#include "relay.h"
#include "report.h"
#include "session.h"
#include "user.h"

#define HELLO_DEADLINE_SECONDS 600

static struct channel channel;
static struct session session;

static int watch_children(void)
{
	sigset_t children;
	sigemptyset(&children);
	sigaddset(&children, SIGCHLD);
	sigprocmask(SIG_BLOCK, &children, NULL);
	signal(SIGPIPE, SIG_IGN);
	return signalfd(-1, &children, SFD_CLOEXEC | SFD_NONBLOCK);
}

static void say_hello(int fd)
{
	uint8_t payload[4];
	channel_init(&channel, fd);
	put_u32(payload, PROTOCOL_VERSION);
	channel_send(&channel, FRAME_HELLO, payload, sizeof payload);
	if (channel_flush_all(&channel, HELLO_DEADLINE_SECONDS) == CHANNEL_LOST)
		lost(&channel, "before HELLO");
}

/* Loads the port's driver and sends HELLO first, because the host waits for it to know that the guest lives. Then
 * loads the disks' driver, which waits for the disks. Meanwhile another process loads the file systems: ext4 takes
 * 0.1 s under TCG.
 *
 * Before the other processors start, the port's list has loaded the PCI transport's driver, which maps the registers
 * of all devices: crates/vm/src/machine/parameters.rs says why. */
static void load_and_greet(void)
{
	struct module_process file_systems;
	char error[512];
	modules_load_all("/modules/port", error, sizeof error);
	start_processors_beside();
	bool beside = modules_load_beside(&file_systems, "/modules/beside");
	/* After a module failed, nothing else can work. */
	int fd = error[0] ? -1 : port_open(PORT_NAME, O_RDWR | O_NONBLOCK);
	if (fd < 0)
		fail_in_log(error[0] ? error : "there is no port " PORT_NAME " to the host");
	say_hello(fd);
	modules_load_all("/modules/order", error, sizeof error);
	if (error[0])
		fail(&channel, STATUS_FAILED, "%s", error);
	if (!beside)
		fail(&channel, STATUS_FAILED, "cannot start a process in the guest: %s; give it more memory", strerror(errno));
	modules_wait(&file_systems, error, sizeof error);
	if (error[0])
		fail(&channel, STATUS_FAILED, "%s", error);
}

static void take_session(void)
{
	struct frame frame;
	for (;;) {
		if (!channel_wait(&channel, &frame))
			lost(&channel, "before RUN");
		if (frame.type == FRAME_RUN)
			return;
		const char *wrong = session_take(&session, &frame);
		if (wrong)
			fail(&channel, STATUS_FAILED, "the agent did not understand the host: %s", wrong);
	}
}

static void set_up_machine(void)
{
	if (session.clock_nanoseconds && set_clock(session.clock_nanoseconds) != 0)
		warn(&channel, "cannot set the guest's clock: %s", strerror(errno));
	start_processors(&channel);
	/* Before the mounts, which may need the network (9P over TCP). */
	network_up(&channel, &session);
	watch_questions(&session);
	mount_session(&channel, &session);
	network_name_server(&channel, &session);
	if (session.hostname && sethostname(session.hostname, strlen(session.hostname)) != 0)
		warn(&channel, "cannot set the guest's name to '%s': %s", session.hostname, strerror(errno));
}

static void run_command(uint64_t began, int children, bool machine)
{
	struct command command;
	uint8_t times[16];
	channel_send(&channel, FRAME_READY, NULL, 0);
	channel_flush_all(&channel, 60);
	user_resolve(&channel, &session);
	give_disks(&channel, &session);
	int processes = machine && session.observe ? observe_start(&channel) : -1;
	command_start(&command, &channel, &session);
	put_u64(times, began);
	put_u64(times + 8, microseconds_of(CLOCK_BOOTTIME));
	channel_send(&channel, FRAME_STARTED, times, sizeof times);
	if (!relay_run(&channel, &command, children, processes, machine ? &session : NULL)) {
		kill(-command.pid, SIGKILL);
		lost(&channel, "before the command's end was told");
	}
}

int main(int argc, char **argv)
{
	uint64_t began = microseconds_of(CLOCK_BOOTTIME);
	bool machine = getpid() == 1;
	if (!machine && (argc != 3 || strcmp(argv[1], "--session") != 0)) {
		fprintf(stderr, "usage: %s --session FD; otherwise the kernel starts it as PID 1\n", argv[0]);
		return 2;
	}
	int children = watch_children();
	if (machine) {
		mount_early();
		/* So that none of our descriptors is ever a standard stream. */
		while (open("/dev/null", O_RDWR) >= 0 && fcntl(STDERR_FILENO, F_GETFD) < 0)
			;
		load_and_greet();
	} else {
		prctl(PR_SET_CHILD_SUBREAPER, 1);
		say_hello(atoi(argv[2]));
	}
	take_session();
	if (machine)
		set_up_machine();
	run_command(began, children, machine);
	if (machine && session.clean_shutdown) {
		unmount_all();
		channel_send(&channel, FRAME_UNMOUNTED, NULL, 0);
		channel_flush_all(&channel, 10);
		port_finish(channel.fd);
	}
	power_off();
}

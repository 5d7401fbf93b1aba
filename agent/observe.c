/*
 * The kernel's process connector (Linux's include/uapi/linux/cn_proc.h) sends a message for each fork, exec and exit, in order.
 * The arguments of a program are not in it: they are read from /proc, for which the process must still be there. So the agent
 * has a real-time priority meanwhile, and reads them before the process gets on.
 */
#include "observe.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/cn_proc.h>
#include <linux/connector.h>
#include <linux/netlink.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "clock.h"
#include "report.h"

/* For events that come while the agent does something else. */
#define SOCKET_BUFFER (16 * 1024 * 1024)
/* Payload of a PROCESSES frame: no more than channel_send() takes. */
#define FRAME_MAX 4000
#define COMMAND_MAX 3000
/* Messages that are taken at once, so that streams are not forgotten. */
#define MESSAGES_MAX 4096
/* How long the kernel may take to report an end after the parent's wait(2) has returned. It takes long where the
 * processor of the one that ends is a thread of a busy host. */
#define END_LIMIT_MICROSECONDS 10000000
/* One more than the largest number of a process (PID_MAX_LIMIT of include/linux/threads.h). */
#define PROCESSES_MAX (4 * 1024 * 1024)

/* Processes whose start was reported, and whose end was not: a bit for each. Not threads: the number of one that executes a program
 * disappears without a report (de_thread() in fs/exec.c). */
static uint64_t under_way[PROCESSES_MAX / 64];
static uint32_t highest; /* the largest of their numbers */
static bool has_gaps; /* the kernel had no room for some events */

static pid_t awaited; /* observe_until()'s process; 0 when its end has been reported */

static struct {
	size_t length;
	uint8_t bytes[FRAME_MAX];
} frame;

static void send_frame(struct channel *channel)
{
	if (frame.length > 0)
		channel_send(channel, FRAME_PROCESSES, frame.bytes, frame.length);
	frame.length = 0;
}

/* Room for one event. */
static uint8_t *add(struct channel *channel, uint8_t kind, size_t length)
{
	if (sizeof frame.bytes - frame.length < 1 + length)
		send_frame(channel);
	uint8_t *at = frame.bytes + frame.length;
	frame.length += 1 + length;
	*at = kind;
	return at + 1;
}

static void add_numbers(struct channel *channel, uint8_t kind, uint32_t first, uint32_t second, uint32_t third)
{
	uint8_t *at = add(channel, kind, 12);
	put_u32(at, first);
	put_u32(at + 4, second);
	put_u32(at + 8, third);
}

static void add_command(struct channel *channel, uint32_t process)
{
	static uint8_t words[COMMAND_MAX];
	char path[64];
	size_t length = 0;
	ssize_t got;
	snprintf(path, sizeof path, "/proc/%u/cmdline", process);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	while (fd >= 0 && length < sizeof words && (got = read(fd, words + length, sizeof words - length)) > 0)
		length += (size_t)got;
	if (fd >= 0)
		close(fd);
	uint8_t *at = add(channel, PROCESS_EXECUTED, 8 + length);
	put_u32(at, process);
	put_u32(at + 4, (uint32_t)length);
	memcpy(at + 8, words, length);
}

static void note_process(uint32_t process, bool is_under_way)
{
	uint64_t bit = (uint64_t)1 << (process % 64);
	if (process >= PROCESSES_MAX)
		return;
	if (is_under_way)
		under_way[process / 64] |= bit;
	else
		under_way[process / 64] &= ~bit;
	if (is_under_way && process > highest)
		highest = process;
}

/* Whether a process is a zombie or gone. */
static bool is_over(uint32_t process)
{
	char text[256];
	snprintf(text, sizeof text, "/proc/%u/stat", process);
	int fd = open(text, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return errno == ENOENT;
	ssize_t got = read(fd, text, sizeof text - 1);
	close(fd);
	if (got <= 0)
		return true;
	text[got] = '\0';
	/* The name, in parentheses, may contain anything. */
	const char *name_end = strrchr(text, ')');
	return name_end && (strncmp(name_end, ") Z", 3) == 0 || strncmp(name_end, ") X", 3) == 0);
}

/* Whether a process has ended whose end the kernel is about to report. */
static bool an_end_is_to_come(void)
{
	if (has_gaps)
		return false;
	for (uint32_t word = 0; word <= highest / 64; word++)
		for (uint64_t bits = under_way[word]; bits; bits &= bits - 1)
			if (is_over(word * 64 + (uint32_t)__builtin_ctzll(bits)))
				return true;
	return false;
}

static void take_event(struct channel *channel, const struct proc_event *event)
{
	switch (event->what) {
	case PROC_EVENT_FORK:
		if (event->event_data.fork.child_pid == event->event_data.fork.child_tgid)
			note_process((uint32_t)event->event_data.fork.child_tgid, true);
		add_numbers(channel, PROCESS_STARTED, (uint32_t)event->event_data.fork.parent_tgid,
			    (uint32_t)event->event_data.fork.child_pid, (uint32_t)event->event_data.fork.child_tgid);
		break;
	case PROC_EVENT_EXEC:
		add_command(channel, (uint32_t)event->event_data.exec.process_tgid);
		break;
	case PROC_EVENT_EXIT:
		if (event->event_data.exit.process_pid == awaited)
			awaited = 0;
		if (event->event_data.exit.process_pid == event->event_data.exit.process_tgid)
			note_process((uint32_t)event->event_data.exit.process_tgid, false);
		add_numbers(channel, PROCESS_ENDED, (uint32_t)event->event_data.exit.process_pid,
			    (uint32_t)event->event_data.exit.process_tgid, event->event_data.exit.exit_code);
		break;
	default:
		break;
	}
}

/* Asks the kernel to begin. */
static bool subscribe(int fd)
{
	struct {
		struct nlmsghdr header;
		struct cn_msg message;
		enum proc_cn_mcast_op operation;
	} __attribute__((packed)) ask = { 0 };
	ask.header.nlmsg_len = sizeof ask;
	ask.header.nlmsg_type = NLMSG_DONE;
	ask.message.id.idx = CN_IDX_PROC;
	ask.message.id.val = CN_VAL_PROC;
	ask.message.len = sizeof ask.operation;
	ask.operation = PROC_CN_MCAST_LISTEN;
	return send(fd, &ask, sizeof ask, 0) == sizeof ask;
}

int observe_start(struct channel *channel)
{
	struct sockaddr_nl address = { .nl_family = AF_NETLINK, .nl_groups = CN_IDX_PROC };
	struct sched_param priority = { .sched_priority = 1 };
	int size = SOCKET_BUFFER;
	int fd = socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_CONNECTOR);
	if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) != 0 || !subscribe(fd)) {
		warn(channel, "the guest's kernel does not report its processes (CONFIG_PROC_EVENTS): %s", strerror(errno));
		if (fd >= 0)
			close(fd);
		return -1;
	}
	setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof size);
	/* Not for the command. Without it some arguments are missing. By number, for musl's function only says ENOSYS. */
	syscall(SYS_sched_setscheduler, 0, SCHED_FIFO | SCHED_RESET_ON_FORK, &priority);
	return fd;
}

void observe_take(struct channel *channel, int fd)
{
	union {
		struct nlmsghdr header;
		uint8_t bytes[4096];
	} buffer;
	ssize_t got;
	for (int count = 0; fd >= 0 && count < MESSAGES_MAX; count++) {
		got = recv(fd, &buffer, sizeof buffer, 0);
		if (got < 0 && errno != ENOBUFS && errno != EINTR)
			break;
		if (got < 0 && errno == ENOBUFS) {
			has_gaps = true;
			add(channel, PROCESS_LOST, 0);
		}
		if (got < 0)
			continue;
		size_t left = (size_t)got;
		for (struct nlmsghdr *header = &buffer.header; NLMSG_OK(header, left); header = NLMSG_NEXT(header, left)) {
			const struct cn_msg *message = NLMSG_DATA(header);
			struct proc_event event = { 0 };
			/* Later kernels may send more, and earlier ones less. */
			size_t length = message->len < sizeof event ? message->len : sizeof event;
			if (header->nlmsg_len < NLMSG_LENGTH(sizeof *message + length) || message->id.idx != CN_IDX_PROC)
				continue;
			memcpy(&event, message->data, length);
			take_event(channel, &event);
		}
	}
	send_frame(channel);
}

void observe_until(pid_t process)
{
	awaited = process;
}

void observe_end(struct channel *channel, int fd, int status)
{
	struct pollfd slot = { .fd = fd, .events = POLLIN };
	uint64_t limit = monotonic_microseconds() + END_LIMIT_MICROSECONDS;
	if (fd < 0)
		return;
	/* The kernel wakes the parent first, and reports the end afterwards (do_exit() in kernel/exit.c). So ends of children may be reported
	 * after that of their parent. */
	do
		observe_take(channel, fd);
	while ((awaited || an_end_is_to_come()) && monotonic_microseconds() < limit && poll(&slot, 1, END_LIMIT_MICROSECONDS / 1000) > 0);
	if (awaited)
		add_numbers(channel, PROCESS_ENDED, (uint32_t)awaited, (uint32_t)awaited, (uint32_t)status);
	awaited = 0;
	send_frame(channel);
}

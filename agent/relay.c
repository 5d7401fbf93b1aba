/*
 * One poll loop, in which nothing blocks. Each stream has a window: its sender stops at the reader's credit, so
 * that an unread stream blocks neither the others nor the signals.
 */
#include "relay.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "circumstances.h"
#include "clock.h"
#include "observe.h"
#include "processes.h"
#include "processors.h"

#define STDIN_WINDOW (256 * 1024)
/* An output that the command leaves to other processes is read until it is silent for this long while none of them
 * has work, and not longer than the limit. They may be filters of the command's own output (`exec > >(tee log)`),
 * which may still wait for a processor, or hold it for ever. Also, a terminal's output passes through a work queue
 * of the kernel, so the last bytes may come shortly after the end. */
#define SILENCE_MICROSECONDS 50000
#define DRAIN_LIMIT_MICROSECONDS 1000000
/* The interval between checks of a terminal that no process has open. */
#define HUNG_UP_MILLISECONDS 20
/* The character that means end of file to a terminal (VEOF's default). */
#define END_OF_FILE 0x04
#define END_OF_FILE_MAX 2

struct output {
	uint8_t type;
	int fd; /* -1: at its end */
	uint64_t credit;
	/* After the command's end: when it will have been silent long enough; 0 while it is not checked. */
	uint64_t silent_at;
	/* It will end after this many bytes, which are in the pipe already. */
	bool last_part;
	uint64_t remaining;
	/* No process has the terminal open now; one may open it again. */
	bool hung_up;
};

struct input {
	int fd;
	size_t start, end; /* of the bytes in `bytes` */
	uint32_t consumed; /* consumed, and not yet credited again */
	bool at_end;
	uint8_t last; /* the last byte taken */
	uint8_t bytes[STDIN_WINDOW + END_OF_FILE_MAX];
};

struct relay {
	struct channel *channel;
	struct command *command;
	int child_signals;
	int processes;
	const struct session *machine;
	struct input input;
	struct output outputs[2];
	bool exited, exit_sent, done, lost;
	int status;
	struct rusage usage; /* of the command and what it waited for */
	struct rest rest_before, rest; /* of the processors */
	uint64_t drain_deadline;
};

static struct relay relay;

static void close_output(struct output *output)
{
	if (output->fd >= 0)
		close(output->fd);
	output->fd = -1;
	if (output == &relay.outputs[0])
		relay.command->output = -1;
}

static void close_input(bool tell)
{
	struct input *input = &relay.input;
	if (input->fd < 0)
		return;
	close(input->fd);
	input->fd = -1;
	input->start = input->end = 0;
	if (tell)
		channel_send(relay.channel, FRAME_STDIN_CLOSED, NULL, 0);
}

static void credit_input(uint32_t bytes)
{
	uint8_t payload[4];
	put_u32(payload, bytes);
	channel_send(relay.channel, FRAME_STDIN_CREDIT, payload, sizeof payload);
}

/* Writes to the command what it accepts now. */
static void write_input(void)
{
	struct input *input = &relay.input;
	while (input->fd >= 0 && input->start < input->end) {
		ssize_t written = write(input->fd, input->bytes + input->start, input->end - input->start);
		if (written < 0 && errno == EINTR)
			continue;
		if (written < 0 && errno == EAGAIN)
			break;
		if (written <= 0) {
			close_input(true);
			return;
		}
		input->start += (size_t)written;
		input->consumed += (uint32_t)written;
	}
	if (input->start == input->end) {
		input->start = input->end = 0;
		if (input->at_end)
			close_input(false);
	}
	if (input->fd >= 0 && !input->at_end && input->consumed >= STDIN_WINDOW / 2) {
		credit_input(input->consumed);
		input->consumed = 0;
	}
}

static void take_input(const uint8_t *bytes, size_t length)
{
	struct input *input = &relay.input;
	if (input->fd < 0 || input->at_end)
		return;
	if (length > sizeof input->bytes - input->end) {
		memmove(input->bytes, input->bytes + input->start, input->end - input->start);
		input->end -= input->start;
		input->start = 0;
	}
	if (length > sizeof input->bytes - input->end) {
		relay.lost = true; /* more than the credit: the host breaks the protocol */
		return;
	}
	if (length > 0)
		input->last = bytes[length - 1];
	memcpy(input->bytes + input->end, bytes, length);
	input->end += length;
	write_input();
}

static void end_input(void)
{
	if (relay.command->terminal) {
		/* After an incomplete line the first one only passes that line to the reader. */
		uint8_t characters[END_OF_FILE_MAX] = { END_OF_FILE, END_OF_FILE };
		take_input(characters, relay.input.last == '\n' ? 1 : 2);
	}
	relay.input.at_end = true;
	write_input();
}

static struct output *output_of(uint8_t stream)
{
	return stream == STREAM_STDOUT ? &relay.outputs[0] : stream == STREAM_STDERR ? &relay.outputs[1] : NULL;
}

static void take_frame(const struct frame *frame)
{
	const uint8_t *at = frame->payload;
	struct output *output = NULL;
	switch (frame->type) {
	case FRAME_STDIN:
		take_input(at, frame->length);
		break;
	case FRAME_STDIN_END:
		end_input();
		break;
	case FRAME_OUTPUT_CREDIT:
		if (frame->length == 5 && (output = output_of(at[0])))
			output->credit += get_u32(at + 1);
		break;
	case FRAME_OUTPUT_CLOSED:
		if (frame->length == 1 && (output = output_of(at[0])))
			close_output(output);
		if (relay.command->terminal) /* the pty's master is both: the terminal hangs up */
			close_input(false);
		break;
	case FRAME_SIGNAL:
		if (frame->length == 4 && !relay.exited && get_u32(at) > 0 && get_u32(at) < NSIG)
			command_signal(relay.command, (int)get_u32(at));
		break;
	case FRAME_WINDOW:
		if (frame->length == 4)
			command_resize(relay.command, get_u16(at), get_u16(at + 2));
		break;
	case FRAME_CLOCK:
		/* Only forward: the command has seen the time. */
		if (frame->length == 8 && relay.machine && relay.machine->clock_nanoseconds &&
		    get_u64(at) / 1000 > microseconds_of(CLOCK_REALTIME))
			set_clock(get_u64(at));
		break;
	case FRAME_BYE:
		relay.done = true;
		break;
	}
}

static void take_frames(void)
{
	struct frame frame;
	enum channel_state state = channel_fill(relay.channel);
	int found;
	while ((found = channel_next(relay.channel, &frame)) > 0)
		take_frame(&frame);
	if (found < 0 || state == CHANNEL_LOST)
		relay.lost = true;
}

static void read_output(struct output *output)
{
	while (output->fd >= 0 && output->credit > 0 && channel_has_room(relay.channel)) {
		uint64_t limit = output->credit;
		if (output->last_part && output->remaining < limit)
			limit = output->remaining;
		long got = limit == 0 ? 0 : channel_send_from(relay.channel, output->type, output->fd, limit);
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0 && errno == EAGAIN) {
			if (output->last_part)
				close_output(output);
			return;
		}
		if (got <= 0 && relay.command->terminal && !relay.exited) {
			/* EIO: no process has the terminal open. Closing our end would send SIGHUP to the command, which may be
			 * about to exit and would then seem to have been killed by it. */
			output->hung_up = true;
			return;
		}
		if (got <= 0) {
			close_output(output);
			return;
		}
		output->credit -= (uint64_t)got;
		output->silent_at = 0;
		if (output->last_part)
			output->remaining -= (uint64_t)got;
	}
}

static void command_ended(int status, const struct rusage *usage)
{
	relay.exited = true;
	relay.status = status;
	relay.usage = *usage;
	relay.rest = processors_rest();
	relay.outputs[0].hung_up = false;
	relay.drain_deadline = monotonic_microseconds() + DRAIN_LIMIT_MICROSECONDS;
	for (int i = 0; i < 2; i++)
		read_output(&relay.outputs[i]);
	close_input(false);
}

static bool is_listened_to(const struct output *output)
{
	return output->fd >= 0 && output->credit > 0 && channel_has_room(relay.channel);
}

/* What is in the output now still counts; later bytes do not. */
static void take_last_part(struct output *output)
{
	int pending = 0;
	output->last_part = true;
	if (ioctl(output->fd, FIONREAD, &pending) == 0)
		output->remaining = (uint64_t)pending;
	if (output->remaining == 0)
		close_output(output);
}

/* Ends the outputs that have been silent long enough since the command's end. */
static void end_outputs(void)
{
	uint64_t now = monotonic_microseconds();
	for (int i = 0; i < 2; i++) {
		struct output *output = &relay.outputs[i];
		if (output->fd < 0 || output->last_part)
			continue;
		if (!is_listened_to(output))
			output->silent_at = 0;
		else if (output->silent_at == 0)
			output->silent_at = now + SILENCE_MICROSECONDS;
		bool silent = output->silent_at != 0 && now >= output->silent_at;
		if (now >= relay.drain_deadline || (silent && !session_is_busy(relay.command->pid)))
			take_last_part(output);
		else if (silent)
			output->silent_at = now + SILENCE_MICROSECONDS;
	}
}

/* How long poll(2) may wait for the outputs: milliseconds, or -1. */
static int milliseconds_to_look_again(void)
{
	if (!relay.exited)
		return relay.outputs[0].hung_up ? HUNG_UP_MILLISECONDS : -1;
	uint64_t next = UINT64_MAX, now = monotonic_microseconds();
	for (int i = 0; i < 2; i++) {
		const struct output *output = &relay.outputs[i];
		if (output->fd < 0 || output->last_part)
			continue;
		if (relay.drain_deadline < next)
			next = relay.drain_deadline;
		if (output->silent_at != 0 && output->silent_at < next)
			next = output->silent_at;
	}
	return next == UINT64_MAX ? -1 : next <= now ? 0 : (int)((next - now) / 1000 + 1);
}

/* PID 1 is the parent of every orphan. */
static void reap(void)
{
	struct signalfd_siginfo information;
	while (read(relay.child_signals, &information, sizeof information) > 0)
		;
	int status;
	struct rusage usage;
	pid_t pid;
	while ((pid = wait4(-1, &status, WNOHANG, &usage)) > 0)
		if (pid == relay.command->pid)
			command_ended(status, &usage);
}

static uint64_t microseconds_in(const struct timeval *time)
{
	return (uint64_t)time->tv_sec * 1000000 + (uint64_t)time->tv_usec;
}

static void send_exit(void)
{
	uint8_t payload[40];
	observe_end(relay.channel, relay.processes, relay.status);
	if (relay.machine && relay.status != 0)
		warn_of_circumstances(relay.channel, relay.machine);
	put_u32(payload, WIFEXITED(relay.status) ? (uint32_t)WEXITSTATUS(relay.status) : 0);
	put_u32(payload + 4, WIFSIGNALED(relay.status) ? (uint32_t)WTERMSIG(relay.status) : 0);
	put_u64(payload + 8, microseconds_in(&relay.usage.ru_utime));
	put_u64(payload + 16, microseconds_in(&relay.usage.ru_stime));
	/* A counter of waiting may go back (proc_stat(5)). */
	const struct rest *before = &relay.rest_before, *after = &relay.rest;
	put_u64(payload + 24, after->idle > before->idle ? after->idle - before->idle : 0);
	put_u64(payload + 32, after->waiting > before->waiting ? after->waiting - before->waiting : 0);
	channel_send(relay.channel, FRAME_EXIT, payload, sizeof payload);
	relay.exit_sent = true;
}

enum { SLOT_CHANNEL, SLOT_CHILDREN, SLOT_INPUT, SLOT_STDOUT, SLOT_STDERR, SLOT_PROCESSES, SLOT_COUNT };

static int wait_for_events(struct pollfd *slots)
{
	struct input *input = &relay.input;
	slots[SLOT_CHANNEL] = (struct pollfd){ .fd = relay.channel->fd, .events = POLLIN };
	if (!channel_is_idle(relay.channel))
		slots[SLOT_CHANNEL].events |= POLLOUT;
	slots[SLOT_CHILDREN] = (struct pollfd){ .fd = relay.child_signals, .events = POLLIN };
	/* Nothing follows the command's end. */
	slots[SLOT_PROCESSES] = (struct pollfd){ .fd = relay.exit_sent ? -1 : relay.processes, .events = POLLIN };
	/* A pipe is watched even without data for it, to notice when its reader closes it; a terminal always has one. */
	bool has_input = input->start < input->end;
	slots[SLOT_INPUT] = (struct pollfd){ .fd = has_input || !relay.command->terminal ? input->fd : -1,
					     .events = has_input ? POLLOUT : 0 };
	for (int i = 0; i < 2; i++) {
		struct output *output = &relay.outputs[i];
		bool wanted = is_listened_to(output) && !output->hung_up;
		slots[SLOT_STDOUT + i] = (struct pollfd){ .fd = wanted ? output->fd : -1, .events = POLLIN };
	}
	int timeout = milliseconds_to_look_again();
	relay.outputs[0].hung_up = false;
	return poll(slots, SLOT_COUNT, timeout);
}

static void take_events(const struct pollfd *slots)
{
	/* First, while the processes are there. */
	if (slots[SLOT_PROCESSES].revents && !relay.exit_sent)
		observe_take(relay.channel, relay.processes);
	if (slots[SLOT_CHANNEL].revents & (POLLIN | POLLHUP | POLLERR))
		take_frames();
	if (slots[SLOT_INPUT].revents & POLLERR)
		close_input(true);
	else if (slots[SLOT_INPUT].revents & POLLOUT)
		write_input();
	for (int i = 0; i < 2; i++)
		if (slots[SLOT_STDOUT + i].revents)
			read_output(&relay.outputs[i]);
	if (slots[SLOT_CHILDREN].revents & POLLIN)
		reap();
	if (relay.exited)
		end_outputs();
	if (relay.exited && !relay.exit_sent && relay.outputs[0].fd < 0 && relay.outputs[1].fd < 0)
		send_exit();
	if (channel_flush(relay.channel) == CHANNEL_LOST)
		relay.lost = true;
}

bool relay_run(struct channel *channel, struct command *command, int child_signals, int processes,
	       const struct session *machine)
{
	struct pollfd slots[SLOT_COUNT] = { 0 };
	relay.channel = channel;
	relay.command = command;
	relay.child_signals = child_signals;
	relay.processes = processes;
	relay.rest_before = processors_rest();
	observe_until(command->pid);
	relay.machine = machine;
	relay.input.fd = command->input;
	relay.input.last = '\n';
	relay.outputs[0] = (struct output){ .type = FRAME_STDOUT, .fd = command->output };
	relay.outputs[1] = (struct output){ .type = FRAME_STDERR, .fd = command->error };
	credit_input(STDIN_WINDOW);
	take_frames(); /* frames that came with RUN are in the buffer already */
	take_events(slots);
	while (!relay.done && !relay.lost)
		if (wait_for_events(slots) > 0 || relay.exited)
			take_events(slots);
	return relay.done;
}

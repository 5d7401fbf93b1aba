/*
 * Uses the kernel's counters since the guest's boot: only the command has run there.
 */
#include "circumstances.h"

#include <linux/filter.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "report.h"

/* The counter NAME of /proc/vmstat; 0 if the kernel does not have it. */
static unsigned long memory_counter(const char *name)
{
	FILE *file = fopen("/proc/vmstat", "re");
	char key[64];
	unsigned long value, found = 0;
	while (file && fscanf(file, "%63s %lu", key, &value) == 2)
		if (strcmp(key, name) == 0)
			found = value;
	if (file)
		fclose(file);
	return found;
}

/* A counter of /proc/net/snmp, which has two lines for each protocol, `Ip: NAME...` and `Ip: VALUE...`; 0 if it is
 * missing. */
static unsigned long network_counter(const char *protocol, const char *name)
{
	FILE *file = fopen("/proc/net/snmp", "re");
	char names[2048], values[2048], *name_rest, *value_rest;
	unsigned long found = 0;
	while (file && fgets(names, sizeof names, file) && fgets(values, sizeof values, file)) {
		char *key = strtok_r(names, " \n", &name_rest), *value = strtok_r(values, " \n", &value_rest);
		if (!key || strcmp(key, protocol) != 0)
			continue;
		while (key && value) {
			if (strcmp(key, name) == 0)
				found = strtoul(value, NULL, 10);
			key = strtok_r(NULL, " \n", &name_rest);
			value = strtok_r(NULL, " \n", &value_rest);
		}
	}
	if (file)
		fclose(file);
	return found;
}

/* Receives copies of packets to a name server; negative while unused. */
static int questions = -1;

static bool has_way_out(const struct session *session)
{
	const uint8_t *gateway = session->network + 8;
	return session->has_network && (gateway[0] || gateway[1] || gateway[2] || gateway[3]);
}

void watch_questions(const struct session *session)
{
	/* Matches datagrams to UDP port 53: X = length of the IP header, A = destination port. */
	struct sock_filter code[] = {
		BPF_STMT(BPF_LDX | BPF_B | BPF_MSH, 0),
		BPF_STMT(BPF_LD | BPF_H | BPF_IND, 2),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 53, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, 1),
		BPF_STMT(BPF_RET | BPF_K, 0),
	};
	struct sock_fprog filter = { .len = sizeof code / sizeof code[0], .filter = code };
	if (has_way_out(session))
		return;
	/* If this fails, questions to a name server are not noticed. */
	questions = socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_UDP);
	if (questions >= 0)
		setsockopt(questions, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter);
}

/* Whether a packet had no route, or a question went to a name server at a local address, which runs only on the host. */
static bool looked_for_network(void)
{
	char first;
	if (network_counter("Ip:", "OutNoRoutes") > 0)
		return true;
	/* A closed port other than a name server's says nothing about the network. */
	return network_counter("Udp:", "NoPorts") > 0 && questions >= 0 && recv(questions, &first, 1, 0) >= 0;
}

void warn_of_circumstances(struct channel *channel, const struct session *session)
{
	unsigned long ended = memory_counter("oom_kill");
	if (ended)
		warn(channel, "the guest ran out of memory, and its kernel ended %lu process%s; give it more (--memory SIZE)",
		     ended, ended == 1 ? "" : "es");
	if (!has_way_out(session) && looked_for_network())
		warn(channel, "the guest has no network, and the command seems to have looked for one; --net gives it one");
}

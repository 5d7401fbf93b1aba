/*
 * Told from the kernel's counters since the guest's boot: nothing but the command has run there.
 */
#include "circumstances.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "report.h"

/* The value of the counter NAME in /proc/vmstat; 0 if the kernel does not have it. */
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

/* /proc/net/snmp has two lines for each protocol, `Ip: NAME...` and `Ip: VALUE...`; 0 if the name is not there. */
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

/* Whether something was sent where no route leads, or asked of a name server of this machine's that runs on the host. */
static bool looked_for_network(void)
{
	return network_counter("Ip:", "OutNoRoutes") > 0 || network_counter("Udp:", "NoPorts") > 0;
}

void warn_of_circumstances(struct channel *channel, const struct session *session)
{
	const uint8_t *gateway = session->network + 8;
	unsigned long ended = memory_counter("oom_kill");
	if (ended)
		warn(channel, "the guest ran out of memory, and its kernel ended %lu process%s; give it more (--memory SIZE)",
		     ended, ended == 1 ? "" : "es");
	bool has_way_out = session->has_network && (gateway[0] || gateway[1] || gateway[2] || gateway[3]);
	if (!has_way_out && looked_for_network())
		warn(channel, "the guest has no network, and the command seems to have looked for one; --net gives it one");
}

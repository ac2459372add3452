package driver

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/task-driver/docker"
)

// When an image is asked of its registry.
const (
	pullMissing = "missing" // when the node does not have it
	pullAlways  = "always"  // every time; the node's is used when the registry does not answer
	pullNever   = "never"   // an image the node does not have is an error
)

// pullPolicy is when the image is asked for: what the task says, else always for an image that is "latest" or has no tag,
// as Docker users expect. An image that is pinned by its digest cannot have changed.
func (tc TaskConfig) pullPolicy(ref string) string {
	switch {
	case tc.PullPolicy != "":
		return tc.PullPolicy
	case pinned(ref):
		return pullMissing
	case tc.ForcePull:
		return pullAlways
	}
	name := ref[strings.LastIndex(ref, "/")+1:]
	if _, tag, ok := strings.Cut(name, ":"); (!ok || tag == "latest") && tc.Load == "" {
		return pullAlways
	}
	return pullMissing
}

// pinned reports whether an image is named by what is in it.
func pinned(ref string) bool { return strings.Contains(ref, "@sha256:") }

// pullLimit is how long a pull may take; 0 is no limit.
func (tc TaskConfig) pullLimit() (time.Duration, error) {
	if tc.PullLimit == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(tc.PullLimit)
	if err != nil || d <= 0 {
		return 0, fmt.Errorf(`%q is not how long a pull may take: write for example "30m", or leave it out for no limit`, tc.PullLimit)
	}
	return d, nil
}

// validateContainer checks the options of containers that can be told without a node.
func (tc TaskConfig) validateContainer(bad func(key, format string, args ...any)) {
	check := func(key string, err error) {
		if err != nil {
			bad(key, "%s", err)
		}
	}
	_, err := parseBytes(tc.ShmSize)
	check("shm_size", err)
	_, err = tc.pullLimit()
	check("image_pull_timeout", err)
	for _, name := range slices.Sorted(maps.Keys(tc.Ulimit)) {
		_, err := parseUlimit(name, tc.Ulimit[name])
		check("ulimit", err)
	}
	if p := tc.PullPolicy; p != "" && !slices.Contains([]string{pullMissing, pullAlways, pullNever}, p) {
		bad("pull_policy", "%q is not known: write missing, always or never", p)
	}
	if tc.PullPolicy != "" && tc.PullPolicy != pullAlways && tc.ForcePull {
		bad("force_pull", "it says the contrary of pull_policy = %q: write one of them", tc.PullPolicy)
	}
	for _, m := range tc.Mounts {
		if m.Target == "" || !strings.HasPrefix(m.Target, "/") {
			bad("mount", "target %q is not a full path: write where the mount appears in the container", m.Target)
		}
		if m.Type != "bind" && m.Type != "volume" && m.Type != "tmpfs" {
			bad("mount", "type %q is not known: write bind, volume or tmpfs", m.Type)
		}
	}
	if tc.PidsLimit < 0 {
		bad("pids_limit", "%d is negative: write how many processes the task may have", tc.PidsLimit)
	}
	if tc.OOMScoreAdj < 0 || tc.OOMScoreAdj > 1000 {
		bad("oom_score_adj", "%d is outside 0–1000: write how soon the kernel may end the task for want of memory", tc.OOMScoreAdj)
	}
	if tc.MemoryHardMiB < 0 {
		bad("memory_hard_limit", "%d is negative: write MiB", tc.MemoryHardMiB)
	}
	if tc.NameAttempts < 0 {
		bad("container_exists_attempts", "%d is negative: write how often a container that holds the name is removed", tc.NameAttempts)
	}
	if c := tc.CgroupNS; c != "" && c != "private" && c != "host" {
		bad("cgroupns", "%q is not known: write private or host", c)
	}
	tc.validateNetwork(bad)
}

func (tc TaskConfig) validateNetwork(bad func(key, format string, args ...any)) {
	if tc.MACAddress != "" {
		if _, err := net.ParseMAC(tc.MACAddress); err != nil {
			bad("mac_address", "%q is not an address: write for example 02:68:b3:29:da:98", tc.MACAddress)
		}
	}
	for key, text := range map[string]string{"ipv4_address": tc.IPv4, "ipv6_address": tc.IPv6} {
		addr, err := netip.ParseAddr(text)
		if text != "" && (err != nil || addr.Is4() != (key == "ipv4_address")) {
			bad(key, "%q is not such an address", text)
		}
	}
	switch tc.NetworkMode {
	case "", "default", "bridge", "host", "none":
		if tc.IPv4 != "" || tc.IPv6 != "" || len(tc.Aliases) > 0 {
			bad("network_mode", "addresses and aliases of a container are for a network with a name: make one (docker network create), and write its name here")
		}
	}
	for _, label := range slices.Sorted(maps.Keys(tc.PortMap)) {
		if p := tc.PortMap[label]; p < 1 || p > 65535 {
			bad("port_map", "%s = %d is not a port", label, p)
		}
	}
}

// parseBytes reads a size: a plain number is bytes, as in the stock docker driver, else a number with a unit.
func parseBytes(s string) (int64, error) {
	if s == "" {
		return 0, nil
	}
	if n, err := strconv.ParseInt(s, 10, 64); err == nil {
		if n < 0 {
			return 0, fmt.Errorf("%d is negative", n)
		}
		return n, nil
	}
	mib, err := accel.ParseMemoryMiB(s)
	if err != nil {
		return 0, err
	}
	return int64(mib) << 20, nil
}

// parseUlimit reads "soft:hard" or one number for both; -1 is no limit.
func parseUlimit(name, value string) (docker.Ulimit, error) {
	softText, hardText, two := strings.Cut(value, ":")
	if !two {
		hardText = softText
	}
	soft, err1 := strconv.ParseInt(softText, 10, 64)
	hard, err2 := strconv.ParseInt(hardText, 10, 64)
	if errors.Join(err1, err2) != nil {
		return docker.Ulimit{}, fmt.Errorf(`%s = %q is not a limit: write "soft:hard", for example "65536:65536"`, name, value)
	}
	return docker.Ulimit{Name: name, Soft: soft, Hard: hard}, nil
}

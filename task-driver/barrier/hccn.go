package barrier

import (
	"net/netip"
	"strconv"
	"strings"
)

// CardAddresses reads the addresses of the NPUs' own network interfaces, by the NPU's index, from the text of
// /etc/hccn.conf: lines of address_<index>=<address>. What is no address is left out.
// Source: hiascend.com, HCCN Tool interface reference (hccn_tool -i 0 -ip -s writes the file).
func CardAddresses(text string) map[int]string {
	out := map[int]string{}
	for line := range strings.Lines(text) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), "=")
		number, is := strings.CutPrefix(strings.TrimSpace(name), "address_")
		if !ok || !is {
			continue
		}
		index, err := strconv.Atoi(number)
		if err != nil || index < 0 || index > 1<<16 {
			continue
		}
		if addr, err := netip.ParseAddr(strings.TrimSpace(value)); err == nil {
			out[index] = addr.String()
		}
	}
	return out
}

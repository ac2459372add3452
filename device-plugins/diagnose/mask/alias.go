package mask

import (
	"net/netip"
	"regexp"
	"strconv"
	"strings"
)

var (
	onlyUUID    = regexp.MustCompile(`^` + partUUID + `$`)
	onlyHex     = regexp.MustCompile(`^(0[xX])?([0-9a-fA-F]+)$`)
	onlyMAC     = regexp.MustCompile(`^` + partMAC + `$`)
	onlyGUID    = regexp.MustCompile(`^` + partGUID + `$`)
	keyedToken  = regexp.MustCompile(`^([\w-]+(?:["']?\s*[:=]\s*["']?|[ \t]+))(.+)$`)
	onlyDomain  = regexp.MustCompile(`^` + partDomain + `$`)
	homeFolder  = regexp.MustCompile(`^(/(?:home|Users)/)(.+)$`)
	versionWord = regexp.MustCompile(`(?i)(?:(?:ver(?:sion)?|driver|firmware|fw|runtime|release|rev|cuda|musa|maca|vbios|v|smi|rt)[\s:.="'|(]*v?|[-_/])$`)
)

// alias is the pseudonym of what a pattern found. Before is the text in front of it.
func (m *Masker) alias(found, before string) string {
	if s, ok := m.literals[strings.ToLower(found)]; ok {
		return m.literal(s, found)
	}
	switch {
	case onlyUUID.MatchString(found):
		return m.uuid(found)
	case onlyGUID.MatchString(found), onlyMAC.MatchString(found):
		return m.place(found)
	case strings.Contains(found, "://"):
		return m.url(found)
	case homeFolder.MatchString(found):
		parts := homeFolder.FindStringSubmatch(found)
		return parts[1] + m.name(User, "user", parts[2])
	case strings.Contains(found, "@"):
		user, host, _ := strings.Cut(found, "@")
		return m.name(User, "user", user) + "@" + m.name(Host, "host", host)
	case onlyHex.MatchString(found):
		return m.hex(found)
	case onlyDomain.MatchString(found):
		return m.name(Host, "host", found)
	}
	if address, err := netip.ParseAddr(found); err == nil {
		return m.address(address, found, before)
	}
	if strings.Trim(found, "0123456789abcdefABCDEF:.") == "" {
		return found // a time, a place on the PCI bus, or a version
	}
	if parts := keyedToken.FindStringSubmatch(found); parts != nil {
		m.count(Token, parts[2])
		return parts[1] + "masked"
	}
	m.count(Token, found)
	return "masked"
}

func (m *Masker) literal(s Secret, found string) string {
	switch s.Kind {
	case Host:
		return m.name(Host, "host", found)
	case User:
		return m.name(User, "user", found)
	}
	if given, ok := m.given[strings.ToLower(found)]; ok {
		m.count(s.Kind, found)
		return sameCase(found, given)
	}
	return m.serial(found)
}

// name stands for a host or a user.
func (m *Masker) name(kind Kind, prefix, value string) string {
	if value == "root" || value == "localhost" {
		return value
	}
	m.count(kind, value)
	return prefix + "-" + m.digest(prefix, strings.ToLower(value), 6)
}

// uuid has the same shape. One of zeros is none.
func (m *Masker) uuid(found string) string {
	if none(found) {
		return found
	}
	m.count(UUID, found)
	digits := m.digest("uuid", strings.ToLower(found), 32)
	return sameCase(found, strings.Join([]string{digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]}, "-"))
}

// serial keeps digits, letters and what parts them at their places.
func (m *Masker) serial(found string) string {
	if parts := onlyHex.FindStringSubmatch(found); parts != nil && (parts[1] != "" || len(found) >= 12 && strings.ContainsAny(found, "abcdefABCDEF")) {
		return m.hex(found)
	}
	m.count(Serial, found)
	for what := "serial"; ; what += "+" {
		if alias := shaped(found, m.digest(what, strings.ToLower(found), 2*len(found))); alias != found || len(what) > 64 {
			return alias
		}
	}
}

// shaped replaces digits but 0, and letters, each by one of its kind.
func shaped(found, digits string) string {
	var out strings.Builder
	for i, r := range []byte(found) {
		n, err := strconv.ParseUint(digits[2*i:2*i+2], 16, 8)
		if err != nil {
			n = 0 // not reached: they are hexadecimal digits
		}
		switch {
		case r >= '1' && r <= '9':
			r = '1' + byte(n%9)
		case r >= 'a' && r <= 'z':
			r = 'a' + byte(n%26)
		case r >= 'A' && r <= 'Z':
			r = 'A' + byte(n%26)
		}
		out.WriteByte(r)
	}
	return out.String()
}

// hex stands for a long number in hexadecimal digits. How it is padded makes no difference. A decimal number is none:
// tools print the bytes of a memory so.
func (m *Masker) hex(found string) string {
	parts := onlyHex.FindStringSubmatch(found)
	digits := strings.TrimLeft(parts[2], "0")
	if none(found) || parts[1] == "" && !strings.ContainsAny(found, "abcdefABCDEF") {
		return found
	}
	m.count(Serial, found)
	zeros := parts[2][:len(parts[2])-len(digits)]
	return parts[1] + zeros + sameCase(digits, m.hexDigits(digits))
}

// hexDigits are as many digits, the first of them not 0.
func (m *Masker) hexDigits(digits string) string {
	out := m.digest("hex", strings.ToLower(digits), len(digits))
	if out[0] == '0' {
		out = "1" + out[1:]
	}
	return out
}

// place stands for a MAC address or the number of a network card.
func (m *Masker) place(found string) string {
	if strings.Trim(found, "0:-") == "" {
		return found
	}
	m.count(Address, found)
	digits := m.digest("place", strings.ToLower(found), 2*len(found))
	var out strings.Builder
	for i, r := range []byte(found) {
		if r != ':' && r != '-' {
			r = digits[i]
		}
		out.WriteByte(r)
	}
	return out.String()
}

// address stands for an IP address. The machine's own, and versions with four parts, stay.
func (m *Masker) address(address netip.Addr, found, before string) string {
	if address.IsLoopback() || address.IsUnspecified() || m.versions[found] || address.Is4() && versionWord.MatchString(before) {
		return found
	}
	m.count(Address, found)
	digits := m.digest("ip", found, 4)
	if address.Is6() {
		return "2001:db8::" + digits
	}
	n, err := strconv.ParseUint(digits, 16, 16)
	if err != nil {
		n = 0 // not reached: they are hexadecimal digits
	}
	return "198.18." + strconv.Itoa(int(n>>8)) + "." + strconv.Itoa(int(n&0xff))
}

// url keeps the scheme alone: host, user, path and query may all tell something.
func (m *Masker) url(found string) string {
	scheme, rest, _ := strings.Cut(found, "://")
	host, _, _ := strings.Cut(rest, "/")
	return scheme + "://" + m.name(Host, "host", host)
}

// sameCase writes a pseudonym in capital letters where the value is.
func sameCase(value, alias string) string {
	if value == strings.ToUpper(value) && value != strings.ToLower(value) {
		return strings.ToUpper(alias)
	}
	return alias
}

// Package mask takes what is private out of the texts of a machine: numbers of single cards, names of hosts and users,
// addresses, command lines, tokens. The same value becomes the same pseudonym everywhere in one bundle, of the same shape
// where tools are parsed by it, so that the texts are still read as before. Which numbers a tool prints where is known by
// the package of the brand, see Knower.
package mask

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/heteroflow/heteroflow/device-plugins/toolout"
)

// A Kind is a kind of private detail.
type Kind string

// What is masked.
const (
	Serial  Kind = "serial numbers"
	UUID    Kind = "UUIDs"
	Host    Kind = "host names"
	Address Kind = "IP and MAC addresses"
	User    Kind = "user names"
	Command Kind = "command lines of processes"
	Token   Kind = "tokens and passwords"
)

// Kinds are all kinds, in the order in which they are told.
func Kinds() []Kind { return []Kind{Serial, UUID, Host, Address, User, Command, Token} }

// Secret is one private detail.
type Secret struct {
	Kind  Kind
	Value string
	// With is a word that stands on the same line; empty when the value is masked everywhere. Of command lines it is the
	// number of the process: a program may be called as the tools call their columns.
	With string
}

// A Knower finds private details in a text that a brand's tool printed.
type Knower interface {
	Secrets(text string) []Secret
}

// A Masker masks the texts of one machine. Learn everything first. It is not safe for concurrent use.
type Masker struct {
	key      []byte
	literals map[string]Secret // by the value in lower case
	lined    []Secret          // those with With
	given    map[string]string // value → pseudonym, where it does not follow from the value alone
	pattern  *regexp.Regexp    // of everything; nil when something was learned since
	seen     map[Kind]map[string]bool
	versions map[string]bool
}

// New returns a masker. The key decides the pseudonyms: one that nobody else has keeps them from being guessed.
func New(key []byte) *Masker {
	return &Masker{
		key: key, literals: map[string]Secret{}, given: map[string]string{}, seen: map[Kind]map[string]bool{}, versions: map[string]bool{},
	}
}

// tooShort are values that occur in texts by chance, and words that are part of what tools print.
func tooShort(s Secret) bool {
	least := 5
	if s.Kind == User || s.Kind == Host {
		least = 3
	}
	word := strings.ToLower(s.Value)
	return len(s.Value) < least || slices.Contains([]string{
		"root", "localhost", "gpu", "npu", "xpu", "dcu", "mlu", "gcu", "node", "host", "user", "card", "device", "driver", "admin", "name", "memory",
		"nvidia", "amd", "intel", "ascend", "huawei", "hygon", "cambricon", "biren", "kunlunxin", "metax", "iluvatar", "enflame", "mthreads", "version",
	}, word)
}

// Learn notes private details. Values that tools print in place of one they do not have are none.
func (m *Masker) Learn(secrets ...Secret) {
	for _, s := range secrets {
		s.Value = strings.TrimSpace(s.Value)
		if toolout.Text(s.Value) == "" || none(s.Value) || anyUUID.MatchString(s.Value) {
			continue // UUIDs are found wherever they are
		}
		switch {
		case s.With != "":
			if !slices.Contains(m.lined, s) {
				m.lined = append(m.lined, s)
			}
		case s.Kind != Command && !tooShort(s):
			m.literals[strings.ToLower(s.Value)] = s
		}
	}
	m.pattern = nil
}

// Keep notes version numbers, which look like IP addresses when they have four parts.
func (m *Masker) Keep(versions ...string) {
	for _, v := range versions {
		m.versions[v] = true
	}
}

// none tells numbers that stand for no number: all zeros, all ones.
func none(value string) bool {
	digits := strings.TrimPrefix(strings.ToLower(value), "0x")
	return strings.Trim(digits, "0-") == "" || strings.Trim(digits, "f-") == ""
}

var (
	anyUUID     = regexp.MustCompile(partUUID)
	keyedSerial = regexp.MustCompile(`(?i)(?:serial[\w /-]*|\bS/?N\b|asset[ _]?tag)["']?\s*[:=]\s*["']?([A-Za-z0-9][A-Za-z0-9._-]{3,})`)
	xmlSerial   = regexp.MustCompile(`(?i)<\w*serial\w*>\s*([^<]+?)\s*</`)
	uniqueID    = regexp.MustCompile(`(?m)^unique_id (\d+)$`)
	columnTitle = regexp.MustCompile(`(?i)^[^:="']*\b(?:SN|serial)\b[^:="']*$`)
	columnValue = regexp.MustCompile(`\b[0-9A-Z]{10,24}\b`)
	keyedHost   = regexp.MustCompile(`(?im)\bhost ?name(?:["']?\s*[:=]\s*["']?|[ \t]+)([A-Za-z0-9][A-Za-z0-9.-]{2,})`)
)

// LearnFrom finds the private details of a text by the keys, tags and titles above them.
func (m *Masker) LearnFrom(text string) {
	for _, pattern := range []*regexp.Regexp{keyedSerial, xmlSerial} {
		for _, found := range pattern.FindAllStringSubmatch(text, -1) {
			m.Learn(Secret{Kind: Serial, Value: found[1]})
		}
	}
	for _, found := range keyedHost.FindAllStringSubmatch(text, -1) {
		m.Learn(Secret{Kind: Host, Value: found[1]})
	}
	for _, found := range uniqueID.FindAllStringSubmatch(text, -1) {
		m.learnUnique(found[1])
	}
	m.learnColumns(text)
}

// learnUnique notes a number that the kernel prints in decimal and tools in hexadecimal digits.
func (m *Masker) learnUnique(decimal string) {
	n, err := strconv.ParseUint(decimal, 10, 64)
	if err != nil || n == 0 {
		return
	}
	digits := strconv.FormatUint(n, 16)
	alias := m.hexDigits(digits)
	padded := strings.Repeat("0", 16-len(digits))
	masked, err := strconv.ParseUint(alias, 16, 64)
	if err != nil {
		return // not reached: as many digits as before
	}
	for value, pseudonym := range map[string]string{decimal: strconv.FormatUint(masked, 10), digits: alias, padded + digits: padded + alias} {
		m.Learn(Secret{Kind: Serial, Value: value})
		m.given[value] = pseudonym
	}
}

// learnColumns finds serial numbers in tables whose titles name them.
func (m *Masker) learnColumns(text string) {
	column, titled := -1, false
	for line := range strings.Lines(text) {
		cells := strings.Split(line, ",")
		if at := slices.IndexFunc(cells, func(c string) bool {
			return strings.Contains(strings.ToLower(c), "serial") && !strings.ContainsAny(c, ":=<")
		}); at >= 0 && len(cells) > 1 {
			column = at
			continue
		}
		if column >= 0 && column < len(cells) && len(cells) > 1 {
			m.Learn(Secret{Kind: Serial, Value: cells[column]})
		}
		if titled = titled || columnTitle.MatchString(strings.TrimSpace(line)); !titled {
			continue
		}
		for _, value := range columnValue.FindAllString(line, -1) {
			if strings.IndexFunc(value, unicode.IsDigit) >= 0 {
				m.Learn(Secret{Kind: Serial, Value: value})
			}
		}
	}
}

// Parts of the pattern, in the order in which they are tried at a place.
const (
	partJWT      = `eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?`
	partAuth     = `(?i:authorization)["']?\s*[:=]\s*["']?(?i:basic|bearer|digest|token)\s+[^\s"']+`
	partBearer   = `(?i:bearer)\s+[^\s"']+`
	partPrefixed = `\b(?:hf|gh[oprsu]|github_pat|glpat|npm|sk|xox[abp]|AKIA|ASIA|AIza|hv[sbr]\.)[-_A-Za-z0-9]{14,}`
	partKey      = `-----BEGIN [A-Z ]*PRIVATE KEY-----[^-]*(?:-----END [A-Z ]*-----)?`
	partQuoted   = `(?i:[\w-]*` + secretWord + `[\w-]*)["']\s*:\s*"(?:[^"\\\n]|\\.)+`
	partKeyed    = `(?i:\b[\w-]*` + secretWord + `[\w-]*)["']?\s*[:=]\s*["']?[^\s"',;<]+`
	partFlag     = `(?i:\B--?[\w-]*` + secretWord + `[\w-]*)[ \t]+[^\s"',;<-][^\s"',;<]*`
	partCookie   = `(?i:\b(?:set-)?cookie["']?\s*[:=]\s*)[^\n]+`
	partDomain   = `\b[A-Za-z0-9](?:[A-Za-z0-9-]*\.)+(?i:com|net|org|edu|gov|cn|io|internal|intranet|corp|lan|local|localdomain)\b`
	secretWord   = `(?:token|secret|password|passwd|api[_-]?key|access[_-]?key|authorization|credential)`
	partURL      = `\b[a-zA-Z][a-zA-Z0-9+.-]*://[^\s"'<>]+`
	partUUID     = `[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}`
	partMAC      = `\b(?:[0-9a-fA-F]{2}[:-]){5}[0-9a-fA-F]{2}\b`
	partGUID     = `\b(?:[0-9a-fA-F]{4}:){3}[0-9a-fA-F]{4}\b`
	partIPv6     = `\b[0-9a-fA-F]{1,4}(?::[0-9a-fA-F]{0,4}){2,7}\b`
	partIPv4     = `\b\d{1,3}(?:\.\d{1,3}){3}\b`
	partMail     = `[A-Za-z0-9._%+-]+@[A-Za-z0-9][A-Za-z0-9.-]*`
	partHome     = `/(?:home|Users)/[^/\s:"',;]+`
	partHex      = `\b(?:0[xX])?[0-9a-fA-F]{12,}\b`
)

func (m *Masker) compiled() *regexp.Regexp {
	if m.pattern != nil {
		return m.pattern
	}
	values := make([]string, 0, len(m.literals))
	for value := range m.literals {
		values = append(values, value)
	}
	slices.SortFunc(values, func(a, b string) int { return cmp.Or(len(b)-len(a), cmp.Compare(a, b)) })
	parts := []string{}
	for _, value := range values {
		part := regexp.QuoteMeta(value)
		// Long values occur by no chance, not even inside of a word.
		if kind := m.literals[value].Kind; len(value) < 8 || kind == User || kind == Host {
			part = edge(value[0]) + part + edge(value[len(value)-1])
		}
		parts = append(parts, `(?i:`+part+`)`)
	}
	parts = append(parts, partAuth, partJWT, partBearer, partPrefixed, partURL, partUUID, partGUID, partMAC, partIPv6, partIPv4, partMail, partHome, partKey, partCookie, partQuoted, partKeyed, partFlag, partDomain, partHex)
	m.pattern = regexp.MustCompile(strings.Join(parts, "|"))
	return m.pattern
}

func edge(c byte) string {
	if c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' {
		return `\b`
	}
	return ""
}

// Text masks a text.
func (m *Masker) Text(text string) string {
	text = m.commands(text)
	pattern := m.compiled()
	var out strings.Builder
	last := 0
	for _, at := range pattern.FindAllStringIndex(text, -1) {
		out.WriteString(text[last:at[0]])
		before := text[max(0, at[0]-40):at[0]]
		out.WriteString(m.alias(text[at[0]:at[1]], before))
		last = at[1]
	}
	out.WriteString(text[last:])
	return out.String()
}

var keyedCommand = regexp.MustCompile(`(?i)((?:process[ _]?name|command(?:[ _]?line)?|cmd(?:[ _]?line)?)["']?[ \t]*(?:[:=]|>)[ \t]*["']?)([^"'<\n]+)`)

// commands masks the command lines of processes.
func (m *Masker) commands(text string) string {
	text = keyedCommand.ReplaceAllStringFunc(text, func(found string) string {
		parts := keyedCommand.FindStringSubmatch(found)
		return parts[1] + m.crossed(parts[2])
	})
	if len(m.lined) == 0 {
		return text
	}
	var out strings.Builder
	for line := range strings.Lines(text) {
		for _, s := range m.lined {
			if strings.Contains(line, s.Value) && slices.Contains(strings.FieldsFunc(line, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) }), s.With) {
				line = strings.ReplaceAll(line, s.Value, m.crossed(s.Value))
			}
		}
		out.WriteString(line)
	}
	return out.String()
}

// crossed replaces letters and digits, so that what stands behind stays in its column.
func (m *Masker) crossed(value string) string {
	if toolout.Text(value) == "" {
		return value
	}
	m.count(Command, value)
	return strings.Map(func(r rune) rune {
		if unicode.IsLetter(r) || unicode.IsDigit(r) {
			return 'x'
		}
		return r
	}, value)
}

func (m *Masker) count(kind Kind, value string) {
	if m.seen[kind] == nil {
		m.seen[kind] = map[string]bool{}
	}
	m.seen[kind][strings.ToLower(value)] = true
}

// Counts is how many different details of each kind were masked.
func (m *Masker) Counts() map[Kind]int {
	counts := map[Kind]int{}
	for kind, values := range m.seen {
		counts[kind] = len(values)
	}
	return counts
}

// digest is a number without end that follows from a value.
func (m *Masker) digest(what, value string, length int) string {
	var out strings.Builder
	for n := 0; out.Len() < length; n++ {
		h := hmac.New(sha256.New, m.key)
		fmt.Fprintf(h, "%s\x00%s\x00%d", what, value, n)
		out.WriteString(hex.EncodeToString(h.Sum(nil)))
	}
	return out.String()[:length]
}

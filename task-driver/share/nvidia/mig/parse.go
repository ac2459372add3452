package mig

import (
	"encoding/xml"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// profile is a kind of GPU instance as the card's own tool lists it.
type profile struct {
	id        int
	name      string // such as 1g.10gb
	memoryMiB uint64
	parts     int   // of the card's compute: the number before "g"
	plain     bool  // without media engines or graphics of its own
	starts    []int // where it may stand, in memory slices
	size      int   // memory slices; 0 when its places are not told
}

// instance is a GPU instance.
type instance struct {
	id, profile int
	name        string
	start, size int
}

func (i instance) String() string { return fmt.Sprintf("%s at %d", i.name, i.start) }

// covers tells whether the instance stands on one of the slices.
func (i instance) covers(start, size int) bool { return start < i.start+i.size && i.start < start+size }

var (
	profileRow  = regexp.MustCompile(`^\|\s*(\d+)\s+MIG\s+(\S+)\s+(\d+)\s+(\d+)/(\d+)\s+([\d.]+)\s`)
	placesRow   = regexp.MustCompile(`^GPU\s+(\d+)\s+Profile ID\s+(\d+)\s+Placements?\s*:\s*\{([\d,\s]*)\}:(\d+)\s*$`)
	instanceRow = regexp.MustCompile(`^\|\s*(\d+)\s+MIG\s+(\S+)\s+(\d+)\s+(\d+)\s+(\d+):(\d+)\s*\|`)
	profileName = regexp.MustCompile(`^(\d+)g\.\d+gb(.*)$`)
	listedCard  = regexp.MustCompile(`^GPU\s+\d+:.*\(UUID:\s*([^)\s]+)\)`)
	listedPart  = regexp.MustCompile(`^\s+MIG\s+\S+\s+Device\s+(\d+):\s*\(UUID:\s*([^)\s]+)\)`)
)

// profileStepMiB is what the memory of every known profile is a multiple of. The tool prints GiB with two digits, which leaves
// up to 5 MiB open: 5.81 is 5952 MiB, 19.62 is 20096.
const profileStepMiB = 32

// limits of what is read: more than any card has.
const (
	maxSlices   = 64
	maxGiB      = 1 << 20
	maxProfiles = 64
)

// parseProfiles reads `nvidia-smi mig -lgip` of one card.
func parseProfiles(text string) ([]profile, error) {
	var out []profile
	err := eachRow(text, profileRow, func(m []string) error {
		n, err := numbers(m[3])
		gib, gibErr := strconv.ParseFloat(m[6], 64)
		if err := errors.Join(err, gibErr); err != nil {
			return err
		}
		if gib <= 0 || gib > maxGiB || len(out) >= maxProfiles {
			return fmt.Errorf("%s GiB, or %d profiles, are more than any card has", m[6], len(out)+1)
		}
		p := profile{id: n[0], name: m[2], memoryMiB: uint64(math.Round(gib*1024/profileStepMiB)) * profileStepMiB}
		if name := profileName.FindStringSubmatch(p.name); name != nil {
			if p.parts, err = strconv.Atoi(name[1]); err != nil {
				return err
			}
			p.plain = name[2] == ""
		}
		out = append(out, p)
		return nil
	})
	if err != nil {
		return nil, err
	}
	if len(out) == 0 {
		return nil, errors.New("no profile is listed")
	}
	return out, nil
}

// parsePlaces reads `nvidia-smi mig -lgipp` of one card and gives the profiles their places.
func parsePlaces(text string, profiles []profile) error {
	seen := 0
	for line := range strings.Lines(text) {
		m := placesRow.FindStringSubmatch(strings.TrimRight(line, "\r\n"))
		if m == nil {
			continue
		}
		n, err := numbers(m[2], m[4])
		if err != nil {
			return err
		}
		starts, err := numbers(strings.FieldsFunc(m[3], func(r rune) bool { return r == ',' || r == ' ' })...)
		if err != nil {
			return err
		}
		if n[1] == 0 || n[1] > maxSlices || len(starts) > maxSlices || slices.ContainsFunc(starts, func(s int) bool { return s > maxSlices }) {
			return fmt.Errorf("%q is no place of any card", strings.TrimSpace(line))
		}
		seen++
		for i := range profiles {
			if profiles[i].id == n[0] {
				profiles[i].starts, profiles[i].size = starts, n[1]
			}
		}
	}
	if seen == 0 {
		return errors.New("no place is listed")
	}
	return nil
}

// parseInstances reads `nvidia-smi mig -lgi` of one card. No instances is an empty list; what cannot be read is an error, since
// what stands on the card is then not known.
func parseInstances(text string) ([]instance, error) {
	out := []instance{}
	err := eachRow(text, instanceRow, func(m []string) error {
		n, err := numbers(m[3], m[4], m[5], m[6])
		if err != nil {
			return err
		}
		if n[3] == 0 || n[2] > maxSlices || n[3] > maxSlices {
			return fmt.Errorf("an instance at %d:%d is on no card", n[2], n[3])
		}
		out = append(out, instance{profile: n[0], id: n[1], start: n[2], size: n[3], name: m[2]})
		return nil
	})
	if err != nil {
		return nil, err
	}
	if len(out) == 0 && !strings.Contains(text, "No GPU instances found") {
		return nil, errors.New("neither instances are listed nor that there are none")
	}
	return out, nil
}

// eachRow reads the rows of a table that name something of MIG, all of one card.
func eachRow(text string, row *regexp.Regexp, read func(m []string) error) error {
	card := ""
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\r\n")
		m := row.FindStringSubmatch(line)
		if m == nil {
			if strings.HasPrefix(line, "|") && strings.Contains(line, " MIG ") {
				return fmt.Errorf("the row %q is not understood", line)
			}
			continue
		}
		if card != "" && card != m[1] {
			return fmt.Errorf("the answer tells of cards %s and %s", card, m[1])
		}
		card = m[1]
		if err := read(m); err != nil {
			return err
		}
	}
	return nil
}

func numbers(texts ...string) ([]int, error) {
	var out []int
	for _, t := range texts {
		n, err := strconv.ParseUint(t, 10, 31)
		if err != nil {
			return nil, fmt.Errorf("%q is no number: %w", t, err)
		}
		out = append(out, int(n))
	}
	return out, nil
}

// parseList reads the MIG devices of a card from `nvidia-smi -L`: UUIDs by the device's number. ok is false when the card is not
// listed.
func parseList(text, card string) (devices map[int]string, ok bool) {
	for line := range strings.Lines(text) {
		if m := listedCard.FindStringSubmatch(line); m != nil {
			if ok {
				return devices, true // the next card
			}
			if m[1] == card {
				devices, ok = map[int]string{}, true
			}
			continue
		}
		if m := listedPart.FindStringSubmatch(line); m != nil && ok {
			if n, err := strconv.Atoi(m[1]); err == nil {
				devices[n] = m[2]
			}
		}
	}
	return devices, ok
}

// state is what `nvidia-smi -q -x` tells of one card.
type state struct {
	UUID      string `xml:"uuid"`
	Minor     string `xml:"minor_number"`
	Current   string `xml:"mig_mode>current_mig"`
	Pending   string `xml:"mig_mode>pending_mig"`
	Devices   []part `xml:"mig_devices>mig_device"`
	Processes []user `xml:"processes>process_info"`
}

// part is a MIG device: a compute instance.
type part struct {
	Index int    `xml:"index"`
	GI    int    `xml:"gpu_instance_id"`
	CI    int    `xml:"compute_instance_id"`
	UUID  string `xml:"uuid"` // newer drivers
}

// user is a process on a card.
type user struct {
	GI   string `xml:"gpu_instance_id"` // N/A on none
	PID  string `xml:"pid"`
	Name string `xml:"process_name"`
}

// parseState finds the card in `nvidia-smi -q -x`.
func parseState(text, card string) (state, error) {
	var log struct {
		Cards []state `xml:"gpu"`
	}
	if err := xml.Unmarshal([]byte(text), &log); err != nil {
		return state{}, fmt.Errorf("read the card's state: %w", err)
	}
	at := slices.IndexFunc(log.Cards, func(s state) bool { return s.UUID == card })
	if at < 0 {
		return state{}, fmt.Errorf("card %s is not listed: nvidia-smi -q -i %s says why", card, card)
	}
	return log.Cards[at], nil
}

package e2e

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/heteroflow/heteroflow/device-plugins/brand/brandtest"
)

// box is a machine that is made of recorded outputs: the makers' tools of four brands, and a PCI bus that is written to fit.
type box struct {
	root, bin string
	tools     map[string]brandtest.Player
}

// smallCards are simulated beside the recorded ones: too small for what asks for 20 GiB.
const smallCards = `
seed = 1
card "nvidia" {
  model  = "T4"
  count  = 2
  memory = "16GiB"
}
`

type boxCard struct {
	vendor, model, uuid string
	index, memory       int
}

// deadCard is the A40 that the recorded output shows dead. What it was before is made of its neighbours' rows.
const deadCard = "GPU-11111111-2222-3333-4444-555555555555"

// boxCards is what is on the box: the A40s by nvidia-smi 525.60.13, the S5000s by mthreads-gmi 2.3.2, the P800s by xpu-smi
// 5.0.21.26 and the MLU370s by cnmon 5.10.13, see SOURCES.md beside each recording.
var boxCards = func() []boxCard {
	var cards []boxCard
	add := func(vendor, model string, memory int, uuids ...string) {
		for i, uuid := range uuids {
			cards = append(cards, boxCard{vendor, model, uuid, i, memory})
		}
	}
	add(
		"nvidia", "A40", 46068, "GPU-e45ee7ce-7e88-149a-f8dd-32b27f9512ce", "GPU-7d066543-8e81-d8ec-eb98-c1e31fca80c1",
		"GPU-17e62166-fc85-86df-a4d1-bc0e1742c08b", "GPU-f7177163-c833-dff4-b38f-c8d2872f1ec6", deadCard,
		"GPU-68d30a95-9472-8bc3-9aa2-4be94b319d21", "GPU-3abe124e-cc82-bf2c-2e22-e6058f38c50c", "GPU-b713e632-3a68-d3dd-abf4-855826c50148",
	)
	add("nvidia", "T4", 16384, "SIM-NVIDIA-3e37b062-0", "SIM-NVIDIA-3e37b062-1")
	add("mthreads", "S5000", 81920, "GPU-399282a8-ba01-1475-893c-2eeca9e302f5", "GPU-5ebdeb63-ba7a-5904-4f16-495b3e1de6c8")
	add(
		"kunlunxin", "P800-OAM", 98304, "PCI-0000:52:00.0", "PCI-0000:55:00.0", "PCI-0000:63:00.0", "PCI-0000:66:00.0",
		"PCI-0000:9a:00.0", "PCI-0000:9b:00.0", "PCI-0000:aa:00.0", sickP800,
	)
	add("cambricon", "MLU370-X8", 23374, "PCI-0000:39:00.0", "PCI-0000:3d:00.0")
	return cards
}()

const sickP800 = "PCI-0000:ab:00.0"

// brokenTools is why the cards of a brand are sick while its tool is broken by breakOthers.
var brokenTools = map[string]string{
	"nvidia":    "nvidia-smi cannot reach the NVIDIA driver",
	"mthreads":  "mthreads-gmi printed nothing that is known",
	"kunlunxin": "xpu-smi printed nothing that is known",
}

func newBox(t *testing.T) *box {
	t.Helper()
	b := &box{root: t.TempDir(), bin: t.TempDir(), tools: map[string]brandtest.Player{}}
	for _, on := range []struct{ vendor, device, driver, addresses string }{
		{"10de", "2235", "nvidia", "03 04 43 44 83 84 c3 c4"},
		{"1ed5", "0400", "mtgpu", "2a 3a"},
		{"1d22", "3685", "kunlun", "52 55 63 66 9a 9b aa ab"},
		{"cabc", "0370", "cambricon-drv", "39 3d"},
	} {
		for bus := range strings.FieldsSeq(on.addresses) {
			brandtest.Bus(t, b.root, "0000:"+bus+":00.0", on.vendor, on.device, on.driver, "01")
		}
	}
	for _, name := range []string{"nvidia-smi", "mthreads-gmi", "xpu-smi", "cnmon"} {
		b.tools[name] = brandtest.Install(t, b.bin, name)
	}
	b.mend(t)
	return b
}

// recorded is the text that a tool printed elsewhere.
func recorded(t testing.TB, path string) string {
	t.Helper()
	return brandtest.Sample(t, filepath.Join("..", "device-plugins", path)).Text
}

// mend makes every tool answer with idle cards.
func (b *box) mend(t testing.TB) {
	t.Helper()
	b.load(t, 0)
	b.present(t, true)
}

// load makes the tools show how busy their cards are, in percent; 0 is what was recorded.
func (b *box) load(t testing.TB, busy int) {
	t.Helper()
	b.loadOthers(t, busy)
	b.tools["cnmon"].Play(t, map[string]brandtest.Answer{
		"": {Text: loaded(recorded(t, "cambricon/testdata/table-mlu370x8-5.10.13.txt"), busy)},
	})
}

func (b *box) loadOthers(t testing.TB, busy int) {
	t.Helper()
	b.playNVIDIA(t, true, busy)
	b.tools["mthreads-gmi"].Play(t, map[string]brandtest.Answer{
		"--query --json": {Text: loaded(recorded(t, "mthreads/testdata/query-s5000-first-two.json"), busy)},
		"":               {Text: loaded(recorded(t, "mthreads/testdata/table-s5000-2.3.2-first-two.txt"), busy)},
	})
	b.tools["xpu-smi"].Play(t, map[string]brandtest.Answer{
		"": {Text: loaded(recorded(t, "kunlunxin/testdata/table-p800-oam-5.0.21.26.txt"), busy)},
	})
}

const a40 = "nvidia/testdata/standin/boxes/a40-one-dead/"

// playNVIDIA plays the recorded box with a dead card, or the same box before the card died.
func (b *box) playNVIDIA(t testing.TB, alive bool, busy int) {
	t.Helper()
	query, list := recorded(t, a40+"query-gpu.csv"), recorded(t, a40+"list.txt")
	answers := map[string]brandtest.Answer{"--query-compute-apps=*": {Text: "gpu_uuid, pid\n"}}
	status := 15
	if alive {
		status = 0
		lost := regexp.MustCompile(`(?m)^Unable to determine.*\n(\[Unknown Error\].*\n)?`)
		query = lost.ReplaceAllString(query, "4, "+deadCard+", NVIDIA A40, 00000000:83:00.0, 46068 MiB, 0 MiB, 525.60.13, 0 %, 24, 14.00 W, 300.00 W, [N/A]\n")
		list = lost.ReplaceAllString(list, "GPU 4: NVIDIA A40 (UUID: "+deadCard+")\n")
	} else {
		answers[""] = brandtest.Answer{Text: recorded(t, a40+"table.txt"), Status: status}
	}
	answers["--query-gpu=*"] = brandtest.Answer{Text: loaded(query, busy), Status: status}
	answers["-L"] = brandtest.Answer{Text: list, Status: status}
	b.tools["nvidia-smi"].Play(t, answers)
}

// loads are the live numbers in the recorded texts.
var loads = []struct {
	number *regexp.Regexp // with what stands before and behind it
	step   int            // of the number for each percent
}{
	// nvidia-smi: utilisation, memory, power
	{regexp.MustCompile(`(, )\d+( %,)`), 1},
	{regexp.MustCompile(`(, )\d+( MiB, \d+\.)`), 400},
	{regexp.MustCompile(`(, )\d+(\.00 W, 300)`), 3},
	// xpu-smi
	{regexp.MustCompile(`( *)\d+(% +Default)`), 1},
	{regexp.MustCompile(`( *)\d+(MiB / 98304MiB)`), 900},
	{regexp.MustCompile(`( *)\d+(W / 400W)`), 4},
	// cnmon: memory and power
	{regexp.MustCompile(`( *)\d+( MiB/ 23374)`), 200},
	{regexp.MustCompile(`( *)\d+( W/ 250)`), 2},
	// mthreads-gmi --json: utilisation, memory, power, temperature
	{regexp.MustCompile(`("Gpu": ")\d+(%")`), 1},
	{regexp.MustCompile(`("Used": ")\d+(MiB")`), 800},
	{regexp.MustCompile(`("Power Draw ": ")\d+(\.\d+W")`), 9},
	{regexp.MustCompile(`("GPU Current Temp": ")\d+(C")`), 1},
}

// loaded is a recorded text as if the cards were this busy, in percent; 0 leaves it alone.
func loaded(text string, busy int) string {
	if busy == 0 {
		return text
	}
	for _, l := range loads {
		text = l.number.ReplaceAllStringFunc(text, func(found string) string {
			m := l.number.FindStringSubmatch(found)
			number := fmt.Sprint(busy * l.step)
			if m[1] == strings.Repeat(" ", len(m[1])) { // a column of a table keeps its width
				number = fmt.Sprintf("%*s", len(found)-len(m[2]), number)
				m[1] = ""
			}
			return m[1] + number + m[2]
		})
	}
	return text
}

// present takes the last P800 off the bus, so that it does not answer there, or puts it back.
func (b *box) present(t testing.TB, there bool) {
	t.Helper()
	revision := "ff"
	if there {
		revision = "01"
	}
	brandtest.Files(t, b.root, map[string]string{"sys/bus/pci/devices/" + strings.TrimPrefix(sickP800, "PCI-") + "/revision": "0x" + revision})
}

// hang makes cnmon never end.
func (b *box) hang(t testing.TB) {
	t.Helper()
	b.tools["cnmon"].Play(t, map[string]brandtest.Answer{"*": {Hang: true}})
}

// breakOthers breaks the tools of all other brands: NVIDIA's as it was recorded without a driver, the others by a text
// that means nothing.
func (b *box) breakOthers(t testing.TB) {
	t.Helper()
	without := recorded(t, "nvidia/testdata/standin/boxes/no-driver/query-gpu.csv")
	b.tools["nvidia-smi"].Play(t, map[string]brandtest.Answer{"*": {Text: without, Status: 9}})
	for _, name := range []string{"mthreads-gmi", "xpu-smi"} {
		b.tools[name].Play(t, map[string]brandtest.Answer{"*": {Text: "segmentation fault\n", Stderr: true, Status: 139}})
	}
}

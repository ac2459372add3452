package makertest

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/heteroflow/heteroflow/task-driver/share"
	"github.com/heteroflow/heteroflow/task-driver/share/sharetest"
)

// NPUSMI is a fake npu-smi of one board with one chip of 20 AI cores, number 3, that keeps the virtual NPUs it made.
type NPUSMI struct {
	*sharetest.Tools
	mu        sync.Mutex
	name      string
	cores     int
	memoryGB  int
	templates []template
	vnpus     map[int]string

	// What tests change before they begin.
	PIDs     []int  // processes on the chip
	Mode     string // docker, vm
	Recover  string // enable, disable
	NoSizes  bool   // it does not tell the templates
	HalfList bool   // it leaves out a virtual NPU that it counts
	Refuses  bool   // it says Failed with status 0
}

// template is one size.
type template struct {
	Name  string
	Cores int
	GB    int
}

// NewNPUSMI is a 910B3 without virtual NPUs.
func NewNPUSMI() *NPUSMI {
	f := &NPUSMI{name: "910B3", cores: 20, memoryGB: 64, vnpus: map[int]string{}, Mode: "docker", Recover: "enable"}
	f.templates = []template{{"vir05_1c_16g", 5, 16}, {"vir10_3c_32g", 10, 32}, {"vir10_3c_32g_nm", 10, 32}}
	f.Tools = sharetest.NewTools(map[string]func([]string) share.Output{"npu-smi": f.run})
	return f
}

// Things lists the virtual NPUs without their numbers, which differ from one making to the next.
func (f *NPUSMI) Things() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Sorted(maps.Values(f.vnpus))
}

// Add makes a virtual NPU as anybody may, and tells its number.
func (f *NPUSMI) Add(name string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.create(name)
}

func (f *NPUSMI) create(name string) int {
	id := 3*16 + 100
	for ; f.vnpus[id] != ""; id++ {
	}
	f.vnpus[id] = name
	return id
}

func (f *NPUSMI) size(name string) template {
	i := slices.IndexFunc(f.templates, func(s template) bool { return s.Name == name })
	if i < 0 {
		return template{}
	}
	return f.templates[i]
}

func (f *NPUSMI) free() (cores, gb int) {
	cores, gb = f.cores, f.memoryGB
	for _, name := range f.vnpus {
		s := f.size(name)
		cores, gb = cores-s.Cores, gb-s.GB
	}
	return cores, gb
}

func npuFailed(text string) share.Output {
	return share.Output{Stdout: "    Status                         : Failed\n    Message                        : " + text + "\n", ExitCode: 1}
}

func npuDone(text string) share.Output {
	return share.Output{Stdout: "    Status                         : OK\n    Message                        : " + text + "\n"}
}

// flags reads "-i 5 -c 1".
func flags(args []string) map[string]string {
	out := map[string]string{}
	for i := 0; i+1 < len(args); i += 2 {
		out[args[i]] = args[i+1]
	}
	return out
}

func (f *NPUSMI) run(args []string) share.Output {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(args) == 1 && args[0] == "info" {
		return share.Output{Stdout: f.Table()}
	}
	o := flags(args[1:])
	if id, given := o["-i"]; given && id != "3" || o["-c"] != "" && o["-c"] != "0" {
		return npuFailed("The device id is invalid.")
	}
	switch args[0] + " " + o["-t"] {
	case "info vnpu-mode":
		return share.Output{Stdout: "\tvnpu-mode                      : " + f.Mode + "\n"}
	case "info vnpu-cfg-recover":
		return share.Output{Stdout: "\tvnpu config recover mode       : " + f.Recover + "\n"}
	case "info template-info":
		if f.NoSizes {
			return npuFailed("This device does not support template-info.")
		}
		return share.Output{Stdout: f.sizes()}
	case "info info-vnpu":
		return share.Output{Stdout: f.division()}
	case "set create-vnpu":
		return f.createByTool(o["-f"])
	case "set destroy-vnpu":
		id, err := strconv.Atoi(o["-v"])
		if err != nil || f.vnpus[id] == "" {
			return npuFailed("The vnpu id is invalid.")
		}
		delete(f.vnpus, id)
		return npuDone(fmt.Sprintf("Destroy vnpu %d success", id))
	}
	return npuFailed("Invalid parameter.")
}

func (f *NPUSMI) createByTool(name string) share.Output {
	s := f.size(name)
	cores, gb := f.free()
	switch {
	case f.Refuses:
		out := npuFailed("The resource is busy.")
		out.ExitCode = 0
		return out
	case s.Cores == 0:
		return npuFailed("The template name is invalid.")
	case cores < s.Cores || gb < s.GB:
		return npuFailed("The resource is not enough.")
	}
	f.create(name)
	return npuDone("Create vnpu success")
}

// Table is what `npu-smi info` prints.
func (f *NPUSMI) Table() string {
	const thin, thick = "+---------------------------+---------------+----------------------------------------------------+\n",
		"+===========================+===============+====================================================+\n"
	var b strings.Builder
	b.WriteString(thin)
	b.WriteString("| npu-smi 24.1.0                   Version: 24.1.0                                               |\n" + thin)
	b.WriteString("| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|\n")
	b.WriteString("| Chip  Device              | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |\n" + thick)
	fmt.Fprintf(&b, "| 3     %-20s| OK            | 89.9        53                0    / 0             |\n", f.name)
	b.WriteString("| 0     3                   | 0000:5A:00.0  | 0           0    / 0          3317 / 65536         |\n" + thick)
	b.WriteString(thin + "| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |\n" + thick)
	for _, pid := range f.PIDs {
		fmt.Fprintf(&b, "| 3       0                 | %-14d| python                   | 1000                    |\n", pid)
	}
	if len(f.PIDs) == 0 {
		b.WriteString("| No running processes found in NPU 3                                                            |\n")
	}
	b.WriteString(thick)
	return b.String()
}

func (f *NPUSMI) sizes() string {
	var b strings.Builder
	b.WriteString("|Name                AICORE    Memory    AICPU     VPC            VENC           JPEGD     |\n")
	b.WriteString("|                               GB                 PNGD           VDEC           JPEGE     |\n")
	for _, s := range f.templates {
		fmt.Fprintf(&b, "|%-20s%-10d%-10d1         1              0              2         |\n", s.Name, s.Cores, s.GB)
		b.WriteString("|                                                  0              1              1         |\n")
	}
	return b.String()
}

func (f *NPUSMI) division() string {
	cores, gb := f.free()
	var b strings.Builder
	b.WriteString("| NPU resource static info as follow:                                           |\n")
	b.WriteString("| AICORE    Memory    AICPU    VPC    VENC    VDEC    JPEGD    JPEGE    PNGD    |\n")
	b.WriteString("|            GB                                                                 |\n")
	fmt.Fprintf(&b, "| %-9s %-9s 6/6      9/9    0/0     2/2     24/24    4/4      NA/NA   |\n", fmt.Sprintf("%d/%d", cores, f.cores), fmt.Sprintf("%d/%d", gb, f.memoryGB))
	fmt.Fprintf(&b, "| Total number of vnpu: %-2d                                                      |\n", len(f.vnpus))
	b.WriteString("|  Vnpu ID  |  Vgroup ID     |  Container ID  |  Status  |  Template Name       |\n")
	for i, id := range slices.Sorted(maps.Keys(f.vnpus)) {
		if f.HalfList && i == 0 {
			continue
		}
		fmt.Fprintf(&b, "|  %-7d  |  0             |  000000000000  |  0       |  %-20s|\n", id, f.vnpus[id])
	}
	return b.String()
}

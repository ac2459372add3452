package ascend

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

// npuSMI is a fake npu-smi of one board with one chip of 20 AI cores, number 3, that keeps the virtual NPUs it made.
type npuSMI struct {
	*sharetest.Tools
	mu        sync.Mutex
	name      string
	cores     int
	memoryGB  int
	templates []Size
	vnpus     map[int]string
	pids      []int
	mode      string // docker, vm
	recover   string // enable, disable
	noSizes   bool
	halfList  bool
	refuses   bool // says Failed with status 0
}

func newNPUSMI() *npuSMI {
	f := &npuSMI{name: "910B3", cores: 20, memoryGB: 64, vnpus: map[int]string{}, mode: "docker", recover: "enable"}
	f.templates = []Size{{"vir05_1c_16g", 5, 16}, {"vir10_3c_32g", 10, 32}, {"vir10_3c_32g_nm", 10, 32}}
	f.Tools = sharetest.NewTools(map[string]func([]string) share.Output{"npu-smi": f.run})
	return f
}

// things lists the virtual NPUs without their numbers, which differ from one making to the next.
func (f *npuSMI) things() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Sorted(maps.Values(f.vnpus))
}

func (f *npuSMI) add(template string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.create(template)
}

func (f *npuSMI) create(template string) int {
	id := 3*16 + 100
	for ; f.vnpus[id] != ""; id++ {
	}
	f.vnpus[id] = template
	return id
}

func (f *npuSMI) size(template string) Size {
	i := slices.IndexFunc(f.templates, func(s Size) bool { return s.Name == template })
	if i < 0 {
		return Size{}
	}
	return f.templates[i]
}

func (f *npuSMI) free() (cores, gb int) {
	cores, gb = f.cores, f.memoryGB
	for _, template := range f.vnpus {
		s := f.size(template)
		cores, gb = cores-s.Cores, gb-s.GB
	}
	return cores, gb
}

func failed(text string) share.Output {
	return share.Output{Stdout: "    Status                         : Failed\n    Message                        : " + text + "\n", ExitCode: 1}
}

func done(text string) share.Output {
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

func (f *npuSMI) run(args []string) share.Output {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(args) == 1 && args[0] == "info" {
		return share.Output{Stdout: f.table()}
	}
	o := flags(args[1:])
	if id, given := o["-i"]; given && id != "3" || o["-c"] != "" && o["-c"] != "0" {
		return failed("The device id is invalid.")
	}
	switch args[0] + " " + o["-t"] {
	case "info vnpu-mode":
		return share.Output{Stdout: "\tvnpu-mode                      : " + f.mode + "\n"}
	case "info vnpu-cfg-recover":
		return share.Output{Stdout: "\tvnpu config recover mode       : " + f.recover + "\n"}
	case "info template-info":
		if f.noSizes {
			return failed("This device does not support template-info.")
		}
		return share.Output{Stdout: f.sizes()}
	case "info info-vnpu":
		return share.Output{Stdout: f.division()}
	case "set create-vnpu":
		return f.createByTool(o["-f"])
	case "set destroy-vnpu":
		id, err := strconv.Atoi(o["-v"])
		if err != nil || f.vnpus[id] == "" {
			return failed("The vnpu id is invalid.")
		}
		delete(f.vnpus, id)
		return done(fmt.Sprintf("Destroy vnpu %d success", id))
	}
	return failed("Invalid parameter.")
}

func (f *npuSMI) createByTool(template string) share.Output {
	s := f.size(template)
	cores, gb := f.free()
	switch {
	case f.refuses:
		out := failed("The resource is busy.")
		out.ExitCode = 0
		return out
	case s.Cores == 0:
		return failed("The template name is invalid.")
	case cores < s.Cores || gb < s.GB:
		return failed("The resource is not enough.")
	}
	f.create(template)
	return done("Create vnpu success")
}

func (f *npuSMI) table() string {
	var b strings.Builder
	b.WriteString("| npu-smi 24.1.0                   Version: 24.1.0                                               |\n")
	b.WriteString("| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|\n")
	b.WriteString("| Chip  Device              | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |\n")
	fmt.Fprintf(&b, "| 3     %-20s| OK            | 89.9        53                0    / 0             |\n", f.name)
	b.WriteString("| 0     3                   | 0000:5A:00.0  | 0           0    / 0          3317 / 65536         |\n")
	b.WriteString("| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |\n")
	for _, pid := range f.pids {
		fmt.Fprintf(&b, "| 3       0                 | %-14d| python                   | 1000                    |\n", pid)
	}
	return b.String()
}

func (f *npuSMI) sizes() string {
	var b strings.Builder
	b.WriteString("|Name                AICORE    Memory    AICPU     VPC            VENC           JPEGD     |\n")
	b.WriteString("|                               GB                 PNGD           VDEC           JPEGE     |\n")
	for _, s := range f.templates {
		fmt.Fprintf(&b, "|%-20s%-10d%-10d1         1              0              2         |\n", s.Name, s.Cores, s.GB)
		b.WriteString("|                                                  0              1              1         |\n")
	}
	return b.String()
}

func (f *npuSMI) division() string {
	cores, gb := f.free()
	var b strings.Builder
	b.WriteString("| NPU resource static info as follow:                                           |\n")
	b.WriteString("| AICORE    Memory    AICPU    VPC    VENC    VDEC    JPEGD    JPEGE    PNGD    |\n")
	b.WriteString("|            GB                                                                 |\n")
	fmt.Fprintf(&b, "| %-9s %-9s 6/6      9/9    0/0     2/2     24/24    4/4      NA/NA   |\n", fmt.Sprintf("%d/%d", cores, f.cores), fmt.Sprintf("%d/%d", gb, f.memoryGB))
	fmt.Fprintf(&b, "| Total number of vnpu: %-2d                                                      |\n", len(f.vnpus))
	b.WriteString("|  Vnpu ID  |  Vgroup ID     |  Container ID  |  Status  |  Template Name       |\n")
	for i, id := range slices.Sorted(maps.Keys(f.vnpus)) {
		if f.halfList && i == 0 {
			continue
		}
		fmt.Fprintf(&b, "|  %-7d  |  0             |  000000000000  |  0       |  %-20s|\n", id, f.vnpus[id])
	}
	return b.String()
}

package nvidiatest

// H100NVL is a card in MIG mode whose profiles and places are those of a recorded H100 NVL.
func H100NVL(uuid string) Card {
	return Card{
		UUID: uuid, Model: "NVIDIA H100 NVL", MemoryMiB: 95830, MIG: "Enabled",
		Profiles: []Profile{
			{ID: 19, Name: "1g.12gb", GiB: "10.75", SMs: 16, Total: 7, Starts: []int{0, 1, 2, 3, 4, 5, 6}, Size: 1},
			{ID: 20, Name: "1g.12gb+me", GiB: "10.75", SMs: 16, Total: 1, Starts: []int{0, 1, 2, 3, 4, 5, 6}, Size: 1},
			{ID: 15, Name: "1g.24gb", GiB: "21.62", SMs: 26, Total: 4, Starts: []int{0, 2, 4, 6}, Size: 2},
			{ID: 14, Name: "2g.24gb", GiB: "21.62", SMs: 32, Total: 3, Starts: []int{0, 2, 4}, Size: 2},
			{ID: 9, Name: "3g.47gb", GiB: "46.38", SMs: 60, Total: 2, Starts: []int{0, 4}, Size: 4},
			{ID: 5, Name: "4g.47gb", GiB: "46.38", SMs: 64, Total: 1, Starts: []int{0}, Size: 4},
			{ID: 0, Name: "7g.94gb", GiB: "93.12", SMs: 132, Total: 1, Starts: []int{0}, Size: 8},
		},
	}
}

// A30 is a card in MIG mode whose profiles are those of a recorded A30: their ids differ from a H100's. Its places are written
// from NVIDIA's MIG user guide.
func A30(uuid string) Card {
	return Card{
		UUID: uuid, Model: "NVIDIA A30", MemoryMiB: 24576, MIG: "Enabled",
		Profiles: []Profile{
			{ID: 14, Name: "1g.6gb", GiB: "5.81", SMs: 14, Total: 4, Starts: []int{0, 1, 2, 3}, Size: 1},
			{ID: 21, Name: "1g.6gb+me", GiB: "5.81", SMs: 14, Total: 1, Starts: []int{0, 1, 2, 3}, Size: 1},
			{ID: 5, Name: "2g.12gb", GiB: "11.69", SMs: 28, Total: 2, Starts: []int{0, 2}, Size: 2},
			{ID: 6, Name: "2g.12gb+me", GiB: "11.69", SMs: 28, Total: 1, Starts: []int{0, 2}, Size: 2},
			{ID: 0, Name: "4g.24gb", GiB: "23.44", SMs: 56, Total: 1, Starts: []int{0}, Size: 4},
		},
	}
}

// L40S is a card without MIG.
func L40S(uuid string) Card {
	return Card{UUID: uuid, Model: "NVIDIA L40S", MemoryMiB: 46068, MIG: "[N/A]"}
}

fault "ascend/1" { health = "overheated" }
fault "cambricon/0" { mute = true }
process {
  card = "nvidia/1"
  pid  = 4711
}

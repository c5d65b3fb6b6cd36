// What the stand-in NVRTC makes and the stand-in driver loads, in place of a cubin: a shared
// library with its length before it.
#pragma once

#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

namespace simgrad::stand_in {

inline constexpr char kImageMagic[] = "simgrad stand-in";
inline constexpr size_t kImageHeadBytes = sizeof kImageMagic + sizeof(uint64_t);

inline std::string MakeImage(const std::string& library) {
  std::string image(kImageHeadBytes, '\0');
  const uint64_t bytes = library.size();
  std::memcpy(image.data(), kImageMagic, sizeof kImageMagic);
  std::memcpy(image.data() + sizeof kImageMagic, &bytes, sizeof bytes);
  return image + library;
}

// Null for what is no image. A cubin is one, though nothing of it can be found or run.
inline std::shared_ptr<void> OpenImage(const void* image) {
  const char* const text = static_cast<const char*>(image);
  if (std::strncmp(text, "\177ELF", 4) == 0) {
    return {dlopen(nullptr, RTLD_NOW), [](void*) {}};
  }
  if (std::strncmp(text, kImageMagic, sizeof kImageMagic) != 0) return nullptr;
  uint64_t bytes = 0;
  std::memcpy(&bytes, text + sizeof kImageMagic, sizeof bytes);
  std::string path = (std::filesystem::temp_directory_path() / "simgrad-stand-in-XXXXXX").string();
  const int file = mkstemp(path.data());
  if (file < 0) return nullptr;
  close(file);
  std::ofstream(path, std::ios::binary)
      .write(text + kImageHeadBytes, static_cast<std::streamsize>(bytes));
  void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  std::filesystem::remove(path);
  if (handle == nullptr) return nullptr;
  return {handle, [](void* opened) { dlclose(opened); }};
}

}  // namespace simgrad::stand_in

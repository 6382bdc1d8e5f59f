# Writes a source with the text of files, which the function FUNCTION gives (core/base/embedded_file.h):
#   cmake -DOUT=x.cc -DFUNCTION=name_files -DROOT=/repository -DFILES=a.yaml,b.yaml -P Embed.cmake
string(REPLACE "," ";" FILES "${FILES}")
set(items "")
foreach(file IN LISTS FILES)
  file(READ ${ROOT}/${file} text)
  string(APPEND items "      {\"${file}\", R\"embedded(${text})embedded\"},\n")
endforeach()
file(WRITE ${OUT} "#include \"core/base/embedded_file.h\"

namespace tailrace {

std::span<const EmbeddedFile> ${FUNCTION}() {
  static constexpr EmbeddedFile kFiles[] = {
${items}  };
  return kFiles;
}

}  // namespace tailrace
")

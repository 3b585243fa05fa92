// A click on a picture shows it as large as it is; a click, Esc or Enter closes it. Without scripts, the link opens the file.
const large = document.createElement("dialog");
large.className = "enlarged";
large.tabIndex = 0;
large.addEventListener("click", () => large.close());
large.addEventListener("keydown", (event) => { if (event.key === "Enter") large.close(); });
document.body.append(large);
document.addEventListener("click", (event) => {
  const link = event.target.closest("a.picture");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  const image = new Image();
  image.src = link.href;
  image.alt = link.firstElementChild.alt;
  large.replaceChildren(image);
  large.showModal();
});
// Pictures of several panels: on a phone, site.css lets them scroll.
for (const image of document.querySelectorAll("a.picture img"))
  image.decode().then(() => image.parentElement.classList.toggle("broad", image.naturalWidth > 1.7 * image.naturalHeight));
